"""Which process keeps a file locked, for the sentence that says why the journal waits."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from headway.common.node.process import ProcessId

KERNEL_LOCKS = Path("/proc/locks")
MAX_WORDS = 60


def is_locked(error: Exception) -> bool:
    """Whether another process has the database locked."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without what SQLite adds to it
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def why_locked(error: Exception, file: Path, *, is_shared: bool) -> str:
    """Return which process holds the lock that a SQLite write waits for, and what to do.

    Empty where the error is another one.

    Args:
        error: why the write failed.
        file: the database.
        is_shared: processes of other machines use it, too.
    """
    if not is_locked(error):
        return ""
    holders = _holders(file)
    if not holders:
        elsewhere = "a process of another machine, probably a stopped console or a frozen driver"
        return f"{elsewhere}, holds a lock of it: find it and end it" if is_shared else ""
    stopped = [process for process in holders if process.state() == "T"]
    pid = (stopped or holders)[0].pid
    held = f"process {pid} ({_command(pid)}) holds a lock of it"
    if stopped:
        return f"{held} and is stopped: `kill -CONT {pid}`, or end it"
    return f"{held}: end it if that lasts"


def _holders(file: Path) -> list[ProcessId]:
    """The other processes of this machine that hold a lock of the file."""
    found: dict[ProcessId, None] = {}
    with contextlib.suppress(OSError):
        status = file.stat()
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        for line in KERNEL_LOCKS.read_text().splitlines():
            words = line.split()  # number: [->] kind, mode, access, pid, device:inode, start, end
            if "->" in words or words[5] != f"{device}:{status.st_ino}" or words[4] == "-1":
                continue
            process = ProcessId.of(int(words[4]))
            if process is not None and process != ProcessId.current():
                found[process] = None
    return list(found)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return " ".join(words.decode("utf-8", "replace").split())[:MAX_WORDS]
    return "which has just ended"
