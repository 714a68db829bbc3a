"""Open files, threads and anonymous memory of processes over a run,
and whether they stayed flat."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

STARTING_S = 5.0
"""A younger process may still be opening what it needs; a service that was just killed is."""
MIN_SAMPLES = 5
"""A process that was seen less often tells nothing about growth."""
MORE_FDS = 3
MORE_THREADS = 2
MORE_MEMORY = 0.15
MORE_MEMORY_KIB = 16 << 10
"""What the median of the last third of the samples may exceed that of the first third by;
of memory the larger."""


def sample(pid: int) -> dict[str, float] | None:
    """Age, open files, threads and KiB of anonymous memory of a process; None when it is gone.

    Pages of shared memory do not count: whether they are private changes with every other process
    that maps them.
    """
    try:
        process = psutil.Process(pid)
        # psutil sums private pages only; this sum costs the kernel one walk, unlike one per
        # mapping.
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return {
            "age_s": round(time.time() - process.create_time(), 1),
            "fds": process.num_fds(),
            "threads": process.num_threads(),
            "anonymous_kib": sum(
                int(line.split()[1]) for line in rollup if line.startswith("Anonymous:")
            ),
        }
    except (OSError, psutil.Error):
        return None


class Watch:
    """Samples processes by name; a name whose pid changes begins anew."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self.samples: dict[str, list[dict[str, float]]] = {}

    def take(self, pids: Mapping[str, int]) -> None:
        """One sample of each process."""
        for name, pid in pids.items():
            found = sample(pid)
            if found is None:
                continue
            if self._pids.get(name) != pid:
                self._pids[name], self.samples[name] = pid, []
            self.samples[name].append(found)


def grown(samples: Mapping[str, list[dict[str, float]]]) -> list[str]:
    """What grew over a run, a line each; empty when all stayed flat."""
    lines = []
    for name, taken in samples.items():
        rows = [row for row in taken if row["age_s"] >= STARTING_S]
        if len(rows) < MIN_SAMPLES:
            continue
        third = max(1, len(rows) // 3)
        for key in ("fds", "threads", "anonymous_kib"):
            first = statistics.median(row[key] for row in rows[:third])
            last = statistics.median(row[key] for row in rows[-third:])
            room = {
                "fds": MORE_FDS,
                "threads": MORE_THREADS,
                "anonymous_kib": max(MORE_MEMORY_KIB, MORE_MEMORY * first),
            }[key]
            if last > first + room:
                lines.append(f"{name}: {key} grew from {first:.0f} to {last:.0f}")
    return lines
