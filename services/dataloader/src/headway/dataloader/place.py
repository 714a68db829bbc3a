"""A finished folder takes its place in one step, so that old or new data are there, whole.

``data/corpus`` is made in ``data/.corpus.prepare/draft``; no other target has that name. Where the
file system cannot exchange two names, the old folder waits in ``data/.corpus.prepare/old`` between
two renames, and ``recover`` brings it back if the process ends there.

Processes that cannot lock each other out give a name of their ``own``, and work in
``data/.corpus.prepare/OWN``: the last to put its folder in place wins, and nothing is mixed.
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
    """Where ``target`` is made."""
    return _work(target) / own / "draft"


def recover(target: Path) -> bool:
    """Bring back the old folder if a process ended between the two renames; whether it did."""
    for old in (_work(target) / "old", *_work(target).glob("*/old")):
        if os.path.lexists(target):
            break
        if old.is_dir():
            try:
                _rename(old, target)
            except OSError:
                if os.path.lexists(target):  # somebody else was faster
                    break
                raise
            return True
    return False


def sweep(target: Path, own: str = "") -> None:
    """Remove what an interrupted process left; ``target`` itself is whole by then, or absent.

    With a name of its ``own``, only what lies under that: the rest may be in use.
    """
    shutil.rmtree(_work(target) / own, ignore_errors=True)
    if own:
        with contextlib.suppress(OSError):  # others work there
            _work(target).rmdir()


def put(target: Path, own: str = "") -> None:
    """Let the draft, which is complete, take the place of ``target``, and force it to disk.

    Raises:
        OSError: the names cannot be changed; what was there still is, or ``recover`` finds it.
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
    """Force a file, or the names of a folder, to disk."""
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
