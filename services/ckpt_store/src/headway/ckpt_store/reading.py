"""Reads the files of a checkpoint; unreadable bytes count as damage, with file and position."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headway.ckpt_store.manifest import MANIFEST_NAME
from headway.common.errors import CorruptError

PAUSES_S = (0.2, 0.8, 2.0)
"""Pauses between tries of a failed read: a server failover is temporary, a bad sector is not, and
a file that is missing may be one that this node does not see yet."""

# Errors of a read when the medium, or a remote file system, has lost the bytes: an older checkpoint
# may be intact. Other errors (no permission, no descriptors left) do not concern the bytes.
_LOST = frozenset(
    {errno.EIO, errno.ESTALE, errno.EBADMSG, errno.ENODATA, errno.EREMOTEIO, errno.EUCLEAN}
)

T = TypeVar("T")


class UnreadableError(CorruptError):
    """The disk cannot read the bytes of ``path``; they may be readable on another node."""

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
    """Call ``read``, a read of ``path``, and repeat it if the disk fails.

    It is also repeated if the file is missing from a checkpoint that is still there.

    Raises:
        CorruptError: the file is missing. UnreadableError: the disk repeatedly failed to read it.
        OSError: anything else, such as no permission.
    """
    for pause_s in (*PAUSES_S, None):
        try:
            return read()
        except FileNotFoundError as error:
            if pause_s is None or not (path.parent / MANIFEST_NAME).exists():
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
