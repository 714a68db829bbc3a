"""A finished folder takes its place in one step, so that old or new data are there, whole.

``data/corpus`` is made in ``data/.corpus.prepare/draft``; no other target has that name. Where the
file system cannot exchange two names, the old folder waits in ``data/.corpus.prepare/old`` between
two renames, and ``recover`` brings it back if the process ends there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path

_RENAME_EXCHANGE = 2  # linux/fs.h
_AT_FDCWD = -100
_NOT_OFFERED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})


def draft_of(target: Path) -> Path:
    """Where ``target`` is made."""
    return _work(target) / "draft"


def recover(target: Path) -> bool:
    """Bring back the old folder if a process ended between the two renames; whether it did."""
    old = _old(target)
    if os.path.lexists(target) or not old.is_dir():
        return False
    _rename(old, target)
    return True


def sweep(target: Path) -> None:
    """Remove what an interrupted process left; ``target`` itself is whole by then, or absent."""
    shutil.rmtree(_work(target), ignore_errors=True)


def put(target: Path) -> None:
    """Let the draft, which is complete, take the place of ``target``, and force it to disk.

    Raises:
        OSError: the names cannot be changed; what was there still is, or ``recover`` finds it.
    """
    draft = draft_of(target)
    for path in (*draft.iterdir(), draft):
        sync(path)
    if not os.path.lexists(target):
        _rename(draft, target)
    elif not _exchange(draft, target):
        _rename(target, _old(target))
        _rename(draft, target)
    sweep(target)


def sync(path: Path) -> None:
    """Force a file, or the names of a folder, to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _work(target: Path) -> Path:
    return target.parent / f".{target.name}.prepare"


def _old(target: Path) -> Path:
    return _work(target) / "old"


def _rename(source: Path, target: Path) -> None:
    source.rename(target)
    sync(target.parent)
    sync(source.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Let two names change places at once; False where the file system does not offer it."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        if number in _NOT_OFFERED:
            return False
        raise OSError(number, os.strerror(number), str(one))
    sync(other.parent)
    sync(one.parent)
    return True
