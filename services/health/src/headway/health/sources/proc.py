"""The kernel's view of one process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

import psutil
from headway.common.node.process import ProcessId, kernel_fields
from headway.common.wire.side_thread import SideThread


class ProcessSignals(NamedTuple):
    """One reading. ``state`` is the kernel's letter, or ``gone``, with everything else zero."""

    state: str
    start_ticks: int = 0
    cpu_s: float = 0.0
    """User and system time since the process began."""
    rss_bytes: int = 0
    num_threads: int = 0
    num_fds: int = 0


GONE = ProcessSignals("gone")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def read_process(
    pid: int, start_ticks: int | None = None, *, num_fds: int | None = None
) -> ProcessSignals:
    """Read one process; ``gone`` if there is none, or if the pid now belongs to another one.

    ``num_fds`` are counted unless they are given, since they change slowly and cost the most. One
    file has the rest: psutil takes ten times as long, for each rank twice a second.
    """
    if pid <= 0:
        return GONE
    if num_fds is None:
        num_fds = int(_or_zero(lambda: len(os.listdir(f"/proc/{pid}/fd"))))
    # Last, so that values of another process that reused the pid are never reported.
    fields = kernel_fields(pid)
    if fields is None or (start_ticks is not None and int(fields[19]) != start_ticks):
        return GONE
    return ProcessSignals(
        state=fields[0].decode(),
        start_ticks=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        num_threads=int(fields[17]),
        num_fds=num_fds,
    )


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
