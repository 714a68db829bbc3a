"""Reading the files of a checkpoint: what the disk cannot give back counts as damage, by name and place."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headway.common.errors import CorruptError

PAUSES_S = (0.2, 0.8, 2.0)
"""Between tries of a read that failed: a failover of a server passes, a bad sector does not."""

# What a read answers when the medium, or a remote file system, has lost the bytes: an older checkpoint
# may well be whole. Anything else (no permission, no descriptors left) says nothing about the bytes.
_LOST = frozenset(
    {errno.EIO, errno.ESTALE, errno.EBADMSG, errno.ENODATA, errno.EREMOTEIO, errno.EUCLEAN}
)

T = TypeVar("T")


class UnreadableError(CorruptError):
    """The disk does not give the bytes of ``path`` back; on another node it may be readable."""

    def __init__(self, path: Path, offset: int | None, error: OSError) -> None:
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(
            f"{path}: it cannot be read{where}: {error.strerror}", remedy="use an older checkpoint"
        )
        self.path = path


def read_file(path: Path) -> bytes:
    """The content of ``path``. Raises as ``attempt``."""
    return attempt(path.read_bytes, path)


def attempt(read: Callable[[], T], path: Path, offset: int | None = None) -> T:
    """Carry out ``read``, a read of ``path``, again if the disk fails.

    Raises:
        CorruptError: the file is missing. UnreadableError: the disk cannot read it, time after time.
        OSError: anything else, such as no permission.
    """
    for pause_s in (*PAUSES_S, None):
        try:
            return read()
        except FileNotFoundError as error:
            raise corrupt(path, "it is missing") from error
        except OSError as error:
            if error.errno not in _LOST:
                raise
            if pause_s is None:
                raise UnreadableError(path, offset, error) from error
        time.sleep(pause_s)
    raise AssertionError("the last try returns or raises")


def corrupt(path: Path, what: str) -> CorruptError:
    """A CorruptError that names the file."""
    return CorruptError(f"{path}: {what}", remedy="use an older checkpoint")
