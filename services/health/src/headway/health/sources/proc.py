"""What does the kernel say about one process? Read from ``/proc``, whose root tests may replace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessSignals:
    """One reading. ``state`` is the kernel's letter, or ``gone``; of a gone process everything else is
    zero."""

    state: str
    start_ticks: int = 0
    cpu_s: float = 0.0
    """User and system time since the process began."""
    rss_bytes: int = 0
    num_threads: int = 0
    num_fds: int = 0


GONE = ProcessSignals("gone")


def read_process(pid: int, start_ticks: int | None = None, root: Path = PROC) -> ProcessSignals:
    """Reads one process; ``gone`` when there is none, or when the number now belongs to another one.

    Field numbers are those of proc_pid_stat(5). The command's name may hold spaces and brackets, so fields
    are counted behind its last closing one.
    """
    folder = root / str(pid)
    try:
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return GONE
    if len(fields) < 22 or (start_ticks is not None and int(fields[19]) != start_ticks):
        return GONE
    return ProcessSignals(
        state=fields[0],
        start_ticks=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
        rss_bytes=int(fields[21]) * PAGE_BYTES,
        num_threads=int(fields[17]),
        num_fds=_num_fds(folder),
    )


def read_pss(pid: int, root: Path = PROC) -> int:
    """Proportional memory share in bytes, 0 where it cannot be read. Costs milliseconds on a large
    process."""
    try:
        text = (root / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return 0  # gone, another user's, or a kernel without it
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _num_fds(folder: Path) -> int:
    try:
        return len(os.listdir(folder / "fd"))
    except OSError:
        return 0  # a zombie, or another user's process
