"""What a recovery of this run costs: the time from a fence until all ranks step again."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable

NUM_KEPT = 16
FIRST_S = 10.0
"""Stands for the cost of a recovery before one was measured: that of a worker which is started
anew takes some 8 s (``HealthConfig.again_s``)."""


class RecoveryCost:
    """Fed by the core; all times in seconds on the driver's own clock.

    Args:
        durations: those that the driver before measured, as ``durations``.
    """

    def __init__(self, durations: Iterable[float] = ()) -> None:
        self._durations = deque(durations, maxlen=NUM_KEPT)
        self._begun_at: float | None = None

    def begin(self, now: float) -> None:
        """A generation was fenced; a recovery that is under way continues."""
        if self._begun_at is None:
            self._begun_at = now

    def discard(self) -> None:
        """The recovery under way takes longer for another reason, such as a pause."""
        self._begun_at = None

    def end(self, now: float) -> bool:
        """All ranks step; returns whether that ended a recovery."""
        if self._begun_at is None:
            return False
        self._durations.append(round(now - self._begun_at, 2))
        self._begun_at = None
        return True

    @property
    def usual_s(self) -> float:
        """The median of the newest; one stall in many must not raise it."""
        return statistics.median(self._durations) if self._durations else FIRST_S

    @property
    def durations(self) -> tuple[float, ...]:
        """The newest recoveries, oldest first."""
        return tuple(self._durations)
