"""The kernel's view of one process, read through psutil."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import psutil
from headway.common.node.process import ProcessId, kernel_state
from headway.common.wire.side_thread import SideThread


@dataclass(frozen=True, slots=True)
class ProcessSignals:
    """One reading. ``state`` is the kernel's letter, or ``gone``, with everything else zero."""

    state: str
    start_ticks: int = 0
    cpu_s: float = 0.0
    """User and system time since the process began."""
    rss_bytes: int = 0
    num_threads: int = 0
    num_fds: int = 0


GONE = ProcessSignals("gone")


def read_process(pid: int, start_ticks: int | None = None) -> ProcessSignals:
    """Read one process; ``gone`` if there is none, or if the pid now belongs to another one."""
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
    # Last, so that values of another process that reused the pid are never reported.
    found = kernel_state(pid)
    if found is None or (start_ticks is not None and found[1] != start_ticks):
        return GONE
    return ProcessSignals(*found, cpu_s, int(rss_bytes), int(num_threads), int(num_fds))


def read_pss(pid: int) -> int:
    """Proportional memory share in bytes, 0 where it cannot be read.

    Costs milliseconds on a large process.
    """
    return int(_or_zero(lambda: psutil.Process(pid).memory_full_info().pss))


class PssReader:
    """Proportional memory of processes, read on a separate thread.

    The kernel walks every page table for it, and waits while the process itself is stuck on a hung
    mount with its memory locked.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._wanted: frozenset[ProcessId] = frozenset()
        self._read: dict[ProcessId, tuple[float, int]] = {}
        self._thread = SideThread("pss", self._refresh)

    def follow(self, processes: Collection[ProcessId]) -> None:
        """Read only these processes from now on."""
        wanted = frozenset(processes)
        if wanted != self._wanted:
            self._wanted = wanted
            self._thread.wake()

    def newest(self, process: ProcessId) -> int:
        """Bytes; 0 before the first reading and when three in a row are missing. Never blocks."""
        read_s, nbytes = self._read.get(process, (float("-inf"), 0))
        return nbytes if time.monotonic() - read_s <= 3 * self._interval_s else 0

    def close(self) -> None:
        self._thread.close()

    def _refresh(self) -> float:
        now_s = time.monotonic()
        kept = {process: row for process, row in self._read.items() if process in self._wanted}
        self._read = kept
        for process in self._wanted:
            if now_s - kept.get(process, (float("-inf"), 0))[0] >= self._interval_s / 2:
                kept[process] = (time.monotonic(), read_pss(process.pid))
        return self._interval_s


def _or_zero(read: Callable[[], float]) -> float:
    try:
        return read()
    except (psutil.Error, OSError):
        return 0  # gone, a zombie, or another user's process
