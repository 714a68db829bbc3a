"""Reading the files of a checkpoint: what the disk cannot give back counts as damage, by name and place."""

from __future__ import annotations

import errno
from pathlib import Path

from headway.common.errors import CorruptError

# What a read answers when the medium, or a remote file system, has lost the bytes: asking again gives
# the same, while an older checkpoint may well be whole.
_LOST = frozenset(
    {errno.EIO, errno.ESTALE, errno.EBADMSG, errno.ENODATA, errno.EREMOTEIO, errno.EUCLEAN}
)


def read_file(path: Path) -> bytes:
    """The content of ``path``.

    Raises:
        CorruptError: it is missing, or the disk cannot read it. OSError: anything else, such as no permission.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError, offset: int | None = None) -> CorruptError | OSError:
    """What to raise for ``error``, met while reading ``path``."""
    if isinstance(error, FileNotFoundError):
        return corrupt(path, "it is missing")
    if error.errno not in _LOST:
        return error
    where = "" if offset is None else f" at byte {offset}"
    return corrupt(path, f"it cannot be read{where}: {error.strerror}")


def corrupt(path: Path, what: str) -> CorruptError:
    """A CorruptError that names the file."""
    return CorruptError(f"{path}: {what}", remedy="use an older checkpoint")
