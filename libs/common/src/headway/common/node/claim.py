"""A claim that one process holds at a time, in a file that names the holder.

A dead holder's claim is void.

A lock held for the whole life of a process would also be held by one that is frozen with a
pending SIGKILL, and its successor could never start. Here a lock is held only while the record
is read and written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from headway.common.errors import HeadwayError, InputError
from headway.common.node.process import ProcessId
from headway.common.polling import wait_until

LOCK_LIMIT_S = 5.0
_RECORD_BYTES = 64


class ClaimedError(InputError):
    """Another process, ``holder``, has the claim."""

    def __init__(self, path: Path, holder: ProcessId) -> None:
        super().__init__(
            f"{path} is claimed by process {holder.pid}", remedy="leave that one running, or end it"
        )
        self.holder = holder


def claim(path: Path, process: ProcessId | None = None) -> None:
    """Make this process, or ``process``, the only holder of ``path``.

    It stays the holder until it ends or calls ``release``.

    The file is made if needed, 0600, and overwritten in place, which works on a full disk too.
    Claiming again is harmless.

    Raises:
        ClaimedError: another process is the holder and not terminating
            (``ProcessId.is_terminating``).
        HeadwayError: another process keeps the file locked, which takes long only if
            that process is frozen.
        OSError: the file cannot be opened or written.
    """
    me = process or ProcessId.current()
    with _locked(path) as file:
        holder = _read(file)
        if holder is not None and holder != me and not holder.is_terminating():
            raise ClaimedError(path, holder)
        _write(file, me)


def release(path: Path) -> None:
    """Release this process's claim, if it has one.

    Raises:
        HeadwayError: as ``claim``.
    """
    with contextlib.suppress(OSError), _locked(path) as file:
        if _read(file) == ProcessId.current():
            _write(file, ProcessId(0, 0))


def holder_of(path: Path) -> ProcessId | None:
    """The process that claimed ``path`` last, alive or not; None before the first."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        return _read(file)
    finally:
        os.close(file)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def lock() -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    try:
        if not wait_until(lock, LOCK_LIMIT_S):
            raise HeadwayError(
                f"{path} has been locked for {LOCK_LIMIT_S:g} s",
                remedy="look for a frozen process that has it open (fuser), and end it",
            )
        yield file
    finally:
        os.close(file)


def _read(file: int) -> ProcessId | None:
    words = os.pread(file, _RECORD_BYTES, 0).split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[0] == b"0":
        return None
    return ProcessId(int(words[0]), int(words[1]))


def _write(file: int, holder: ProcessId) -> None:
    record = f"{holder.pid} {holder.start_ticks}\n".encode().rjust(_RECORD_BYTES)
    os.pwrite(file, record, 0)
