"""What the kernel says about one process; its figures come from psutil."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psutil
from headway.common.node.process import kernel_state


@dataclass(frozen=True, slots=True)
class ProcessSignals:
    """One reading. ``state`` is the kernel's letter, or ``gone``: then everything else is zero."""

    state: str
    start_ticks: int = 0
    cpu_s: float = 0.0
    """User and system time since the process began."""
    rss_bytes: int = 0
    num_threads: int = 0
    num_fds: int = 0


GONE = ProcessSignals("gone")


def read_process(pid: int, start_ticks: int | None = None) -> ProcessSignals:
    """Reads one process; ``gone`` if there is none, or if the pid now belongs to another one."""
    if pid <= 0:
        return GONE
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return GONE
    with process.oneshot():
        cpu_s = _or_zero(lambda: sum(process.cpu_times()[:2]))
        rss_bytes = _or_zero(lambda: process.memory_info().rss)
        num_threads, num_fds = _or_zero(process.num_threads), _or_zero(process.num_fds)
    # Last, so that figures of a process that took over the pid meanwhile are never reported.
    found = kernel_state(pid)
    if found is None or (start_ticks is not None and found[1] != start_ticks):
        return GONE
    return ProcessSignals(*found, cpu_s, int(rss_bytes), int(num_threads), int(num_fds))


def read_pss(pid: int) -> int:
    """Proportional memory share in bytes, 0 where it cannot be read.

    Costs milliseconds on a large process.
    """
    return int(_or_zero(lambda: psutil.Process(pid).memory_full_info().pss))


def _or_zero(read: Callable[[], float]) -> float:
    try:
        return read()
    except (psutil.Error, OSError):
        return 0  # gone, a zombie, or another user's process
