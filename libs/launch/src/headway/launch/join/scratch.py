"""A node's folder on its machine's own disk is this user's alone, though others use the disk.

It holds the node's keys and says which program a node runs, so that nobody else may make it, or put
another one in its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from headway.common.errors import HeadwayError, InputError
from headway.common.node.run_dir import private_folder
from headway.common.polling import wait_until

DEFAULT = "/var/tmp/headway-{uid}"
"""``{uid}`` is the number of the user on the machine: each one's folder belongs to who made it."""
LOCK_LIMIT_S = 20.0
_SETTING = "`scratch` in the cluster's file to a folder of your own"


def folder_of(scratch: str, name: str) -> Path:
    """The folder ``name`` below ``scratch`` of this machine."""
    return Path(scratch.replace("{uid}", str(os.getuid()))) / name


def make(folder: Path) -> None:
    """Create a node's folder, and the scratch around it.

    Raises:
        InputError: another user has made one of them. OSError: they cannot be made.
    """
    make_around(folder)
    private_folder(folder, up_to=folder, setting=_SETTING)


def make_around(folder: Path) -> None:
    """Create the scratch around a node's folder. Raises: as ``make``."""
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.parent.mkdir(mode=0o700)
    check(folder)


def check(folder: Path) -> None:
    """Whatever is read from a node's folder may be believed after this.

    Raises:
        InputError: it belongs to another user, or is below a folder of another one. That of root
            may have been made for all users.
    """
    me = os.getuid()
    for path, owners in ((folder.parent, {me, 0}), (folder, {me})):
        try:
            found = [path.lstat(), path.stat()]
        except FileNotFoundError:
            return
        is_link = stat.S_ISLNK(found[0].st_mode) and path == folder
        if is_link or {one.st_uid for one in found} - owners or not path.is_dir():
            raise InputError(
                f"{path} is not a folder of user {me}", remedy=f"remove it, or set {_SETTING}"
            )


@contextlib.contextmanager
def locked(folder: Path, limit_s: float | None = None) -> Iterator[None]:
    """Let no other command change a node's folder.

    Only for short: what waits for a driver must not hold this, since an ``end`` waits for it.

    The lock is on the scratch around the folder, which itself may be removed meanwhile, so there is
    no file that stays. Without a scratch there is nothing to change.

    Raises:
        HeadwayError: another command keeps it for longer than ``limit_s``, by default
            ``LOCK_LIMIT_S``.
    """
    limit_s = LOCK_LIMIT_S if limit_s is None else limit_s
    with _opened(folder.parent) as scratch:
        if not wait_until(lambda: _lock(scratch, fcntl.LOCK_EX), limit_s):
            raise HeadwayError(
                f"{folder.parent} has been locked for {limit_s:g} s",
                remedy="look for a frozen process that has it open (fuser), and end it",
            )
        yield


@contextlib.contextmanager
def used(folder: Path) -> Iterator[None]:
    """Have ``is_used`` report that the node's folder is needed.

    Its init does so, too, by the same lock, see ``headway.launch.init``.
    """
    with _opened(folder) as held:
        _lock(held, fcntl.LOCK_SH)
        yield


def is_used(folder: Path) -> bool:
    """Whether another command or the node's init needs the folder; one that is absent is not."""
    with _opened(folder) as found:
        return not _lock(found, fcntl.LOCK_EX)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    """None where the folder is absent."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield opened
    finally:
        os.close(opened)


def _lock(opened: int | None, kind: int) -> bool:
    """Whether it is locked now; True as well where folders have no locks, as on NFS."""
    try:
        if opened is not None:
            fcntl.flock(opened, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
