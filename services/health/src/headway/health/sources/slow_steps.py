"""Looks closely at all links for two seconds after a step took twice as long as usual."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from headway.common.wire.messages.health import Finding, WorkerSignals
from headway.health.sources.burst import LinkBurst, burst
from headway.health.sources.changes import changed

SLOW_FACTOR: Final = 2.0
MIN_STEPS: Final = 8
"""Of a generation, before there is a usual time."""
PAUSE_S: Final = 60.0
"""From one look to the next, however many steps are slow."""
RULES: Final = {"full": "link_full", "congested": "link_congested", "paused": "link_paused"}


class SlowStepSource:
    """Its ``read`` takes two seconds when it has been asked, and else nothing."""

    def __init__(self, sysfs: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._sysfs, self._clock_s = sysfs, clock_s
        self._asked = threading.Event()
        self._rests_until_s = 0.0
        self._seen: dict[int, tuple[int, int]] = {}
        """By rank, generation and step when its steps were last looked at."""

    def look(self, workers: Sequence[WorkerSignals]) -> None:
        """Ask for a reading if a rank's newest step was slow. Never blocks."""
        for worker in workers:
            newest = (worker.generation, worker.step)
            if self._seen.get(worker.rank) != newest:
                self._seen[worker.rank] = newest
                if is_slow(worker):
                    self._asked.set()

    def read(self) -> list[Finding]:
        """What each link was at that is full, congested or paused."""
        was_asked = self._asked.is_set()
        self._asked.clear()
        if not was_asked or self._clock_s() < self._rests_until_s:
            return []
        self._rests_until_s = self._clock_s() + PAUSE_S
        return [_finding(link) for link in burst(self._sysfs) if link.verdict != "free"]

    def close(self) -> None:
        """Nothing is held."""


def is_slow(worker: WorkerSignals) -> bool:
    """Whether the newest step took much longer than the steps before it."""
    return (
        worker.num_steps >= MIN_STEPS and worker.step_s > SLOW_FACTOR * worker.median_step_s > 0.0
    )


def _finding(link: LinkBurst) -> Finding:
    what = {
        "full": f"is at its limit in {link.full_share:.0%} of the time",
        "congested": f"was slowed down by {link.num_notified} notifications of congestion",
        "paused": f"had to wait for its receiver in {link.paused_share:.0%} of the time",
    }[link.verdict]
    most = max(link.peak_sent, link.peak_received) / 1e9
    line = f"{link.name} {what}, at most {most:.2f} GB/s, after a slow step"
    return changed(RULES[link.verdict], "nic", "nic", line, name=link.name)
