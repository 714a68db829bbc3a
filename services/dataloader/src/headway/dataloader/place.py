"""Puts a finished folder in place atomically: the target has the old or the new data, complete.

``data/corpus`` is made in ``data/.corpus.prepare/draft``; no other target has that name. If the
file system cannot exchange two names, the old folder is kept in ``data/.corpus.prepare/old``
between two renames, and ``recover`` restores it if the process ends there.

Processes without file locks pass a name of their ``own`` and work in ``data/.corpus.prepare/OWN``:
the last one to put its folder in place wins, and nothing is mixed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from pathlib import Path

_RENAME_EXCHANGE = 2  # linux/fs.h
_AT_FDCWD = -100
_NOT_OFFERED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})


def draft_of(target: Path, own: str = "") -> Path:
    """Folder in which ``target`` is built."""
    return _work(target) / own / "draft"


def recover(target: Path) -> bool:
    """Restore the old folder if a process ended between the two renames; returns whether it did."""
    for old in (_work(target) / "old", *_work(target).glob("*/old")):
        if os.path.lexists(target):
            break
        if old.is_dir():
            try:
                _rename(old, target)
            except OSError:
                if os.path.lexists(target):  # another process was faster
                    break
                raise
            return True
    return False


def sweep(target: Path, own: str = "") -> None:
    """Remove what an interrupted process left; ``target`` itself is complete or absent by then.

    With ``own``, remove only that folder: the rest may be in use.
    """
    shutil.rmtree(_work(target) / own, ignore_errors=True)
    if own:
        with contextlib.suppress(OSError):  # others work there
            _work(target).rmdir()


def put(target: Path, own: str = "") -> None:
    """Replace ``target`` by the complete draft and sync it to disk.

    Raises:
        OSError: the names cannot be changed; the old folder is in place, or
            ``recover`` restores it.
    """
    draft = draft_of(target, own)
    for path in (*draft.iterdir(), draft):
        sync(path)
    if not os.path.lexists(target):
        _rename(draft, target)
    elif not _exchange(draft, target):
        _rename(target, draft.with_name("old"))
        _rename(draft, target)
    sweep(target, own)


def sync(path: Path) -> None:
    """Sync a file, or the names of a folder, to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _work(target: Path) -> Path:
    return target.parent / f".{target.name}.prepare"


def _rename(source: Path, target: Path) -> None:
    source.rename(target)
    sync(target.parent)
    sync(source.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names atomically; False if the file system cannot."""
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
