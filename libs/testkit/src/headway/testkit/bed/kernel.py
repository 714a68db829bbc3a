"""System calls that the standard library of Python 3.11 lacks: namespaces and mounts."""

from __future__ import annotations

import ctypes
import os
import signal

NEW_TIME = 0x00000080
NEW_MOUNTS = 0x00020000
NEW_HOST_NAME = 0x04000000
NEW_IPC = 0x08000000
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000

BIND = 0x1000
_PRIVATE = 0x44000
"""MS_REC | MS_PRIVATE"""

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_OPEN_TREE, _OPEN_TREE_CLONE = 428, 1
_MOVE_MOUNT, _MOVE_MOUNT_F_EMPTY_PATH = 429, 4
_MOUNT_SETATTR, _MOUNT_ATTR_RDONLY = 442, 1
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave the caller's namespaces for new ones. ``NEW_NETWORK`` alone affects only one thread."""
    _check(_libc.unshare(flags), "unshare")


def enter(fd: int, flags: int) -> None:
    """Enter the namespace behind ``fd``; ``NEW_NETWORK`` affects only the calling thread."""
    _check(_libc.setns(fd, flags), "setns")


def die_with_parent() -> None:
    """SIGKILL for this process as soon as the thread that forked it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    arguments = (source.encode(), target.encode(), kind.encode() or None, flags, options.encode())
    _check(_libc.mount(*arguments), f"mount {kind or source} on {target}")


def keep_mounts_private() -> None:
    """What this mount namespace mounts from now on, no other one sees."""
    mount("none", "/", flags=_PRIVATE)


def detached(path: str) -> int:
    """A copy of what is mounted at and below ``path``, as writable as now, for ``attach``."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    return _system_call(_OPEN_TREE, _AT_FDCWD, path.encode(), flags, what=f"open_tree {path}")


def attach(fd: int, target: str) -> None:
    """Mount a detached copy on the folder ``target`` and close it."""
    arguments = (fd, b"", _AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH)
    _system_call(_MOVE_MOUNT, *arguments, what=f"move_mount {target}")
    os.close(fd)


def make_read_only(path: str) -> None:
    """All that is mounted at and below ``path``, in this mount namespace. Devices stay writable."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    arguments = (_AT_FDCWD, path.encode(), _AT_RECURSIVE, ctypes.byref(attributes), 32)
    _system_call(_MOUNT_SETATTR, *arguments, what=f"mount_setattr {path}")


def _system_call(number: int, *arguments: object, what: str) -> int:
    # An int would be passed as 32 bits, but syscall(2) reads whole registers.
    wide = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *wide), what)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
