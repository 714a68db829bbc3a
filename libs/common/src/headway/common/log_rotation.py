"""Starts a new log file once the one behind stdout and stderr has grown too large.

A process rotates its own log: it renames ``NAME.log`` to ``NAME.log.1``, in place of an older one,
opens a new ``NAME.log``, and puts that in the place of its descriptors 1 and 2. Each line is in one
of the two files, whichever thread or library writes it meanwhile, since a file is neither copied
nor truncated. What a child that has inherited the descriptors still writes goes to ``NAME.log.1``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

ENV_LOG_MIB = "HEADWAY_LOG_MIB"
"""The size of a log, in MiB, from which it is rotated; without it, or with 0, never."""
ROTATED = ".1"
"""Added to the name of a log for what was written before."""
_STDOUT, _STDERR = 1, 2
_LOG = re.compile(r"(/.+\.log)(?:\.1)?(?: \(deleted\))?")
_RETRY_SHARE = 16
"""After a failure, this part of the limit is written before the next attempt."""


def rotated(path: Path) -> Path:
    """The file with the lines of a log that were written before its newest rotation."""
    return path.with_name(path.name + ROTATED)


class Rotation:
    """Rotates the log of this process; never raises.

    A file that is not a regular one called ``NAME.log`` (a terminal, a pipe) is left alone, and so
    is a log that cannot be rotated, for example for want of an inode: it simply grows.
    """

    def __init__(self, limit_bytes: int = 0) -> None:
        self._limit_bytes = self._next_bytes = limit_bytes

    def set_limit(self, mib: float) -> None:
        """Rotate from ``mib`` MiB on; 0 means never."""
        self._limit_bytes = self._next_bytes = int(mib * (1 << 20))

    def look(self) -> None:
        """Rotate the log if it is large enough; called before a line is written."""
        if self._limit_bytes <= 0:
            return
        size = self._next_bytes
        try:
            size = os.fstat(_STDERR).st_size
            if size < self._next_bytes:
                return
            if (path := _log_of(_STDERR)) is not None:
                _rotate(path)
            self._next_bytes = self._limit_bytes
        except OSError:
            self._next_bytes = size + self._limit_bytes // _RETRY_SHARE


def _log_of(descriptor: int) -> Path | None:
    """The path of the log that a descriptor writes or wrote to; None if it is not a log."""
    found = _LOG.fullmatch(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    return None if found is None else Path(found[1])


def _rotate(path: Path) -> None:
    """Move the log aside unless another process has done so, and write to the new one.

    Raises:
        OSError: the new one cannot be opened; the process still writes to its old file.
    """
    was_moved = _move_aside(path)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        new = os.open(path, flags, 0o600)
    except OSError:
        if was_moved:
            rotated(path).rename(path)
        raise
    try:
        is_stdout = os.path.sameopenfile(_STDOUT, _STDERR)
        os.dup2(new, _STDERR)
        if is_stdout:
            os.dup2(new, _STDOUT)
    finally:
        os.close(new)


def _move_aside(path: Path) -> bool:
    """Rename the log; False if its name belongs to another file already.

    The lock is that of the file itself, so that of two processes with the same log only one renames
    it, and neither renames the new one.

    Raises:
        OSError: another process is renaming it, or it cannot be renamed.
    """
    try:
        own = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.path.sameopenfile(own, _STDERR)
        if is_ours and os.path.samestat(path.stat(), os.fstat(own)):
            path.replace(rotated(path))
            return True
        return False
    finally:
        os.close(own)


def _limit_of_environment() -> int:
    with contextlib.suppress(ValueError, OverflowError):
        return int(float(os.environ.get(ENV_LOG_MIB, "0")) * (1 << 20))
    return 0


rotation = Rotation(_limit_of_environment())
"""That of this process."""
