"""Checks the monotonic clock across CPUs, and its pace against the wall clock."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from headway.health.checks.base import CheckSettings, Finding

HOPS = 200
"""Number of CPU changes; a core with a wrong counter is found at the first switch to it."""
PACE_S = 0.5


@dataclass(frozen=True)
class Clocks:
    """What was read of this machine's clocks."""

    num_cpus: int
    monotonic_ns: list[int]
    """Readings in their order, each on a different CPU than the one before."""
    wall_pace: float
    """Seconds of the wall clock per second of the monotonic one."""


def check(settings: CheckSettings) -> Finding:
    """Read the monotonic clock on each CPU in turn, then compare two clocks over half a second."""
    num_cpus = len(os.sched_getaffinity(0))
    return judge(Clocks(num_cpus, read_across_cpus(), pace_of_wall_clock(PACE_S)), settings)


def judge(measured: Clocks, settings: CheckSettings) -> Finding:
    """The finding about readings of the clocks."""
    back_ns = largest_step_back(measured.monotonic_ns)
    skew = abs(measured.wall_pace - 1)
    values: dict[str, float | str] = {"step back ns": back_ns, "skew": round(skew, 6)}
    if back_ns:
        message = f"the monotonic clock went back by {back_ns} ns between CPUs"
        return Finding(
            False, message, "check the clock source (dmesg | grep -i tsc); drain the node", values
        )
    if skew > settings.max_clock_skew:
        limit = settings.max_clock_skew
        message = f"wall and monotonic clock differ by {skew:.2%} in pace, more than {limit:.2%}"
        return Finding(
            False,
            message,
            "see whether the time service stepped the clock (chronyc tracking)",
            values,
        )
    return Finding(
        True,
        f"monotonic across {measured.num_cpus} CPUs, pace within {skew:.4%}",
        values=values,
    )


def read_across_cpus() -> list[int]:
    """Readings of the monotonic clock, each on a different CPU than the one before."""
    allowed = sorted(os.sched_getaffinity(0))
    readings: list[int] = []
    try:
        for hop in range(HOPS):
            os.sched_setaffinity(0, {allowed[hop % len(allowed)]})
            readings.append(time.monotonic_ns())
    finally:
        os.sched_setaffinity(0, allowed)
    return readings


def largest_step_back(readings: Iterable[int]) -> int:
    """Largest step backwards between readings in nanoseconds; 0 if they are monotonic."""
    return max(0, *(before - after for before, after in itertools.pairwise(readings)), 0)


def pace_of_wall_clock(duration_s: float) -> float:
    """Seconds of the wall clock per second of the monotonic one."""
    wall_ns, steady_ns = time.time_ns(), time.monotonic_ns()
    time.sleep(duration_s)
    return (time.time_ns() - wall_ns) / (time.monotonic_ns() - steady_ns)
