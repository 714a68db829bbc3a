"""Time as an argument: code that decides takes a clock, tests move it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock."""

    def now_s(self) -> float:
        """Seconds since an arbitrary point; never goes back."""


class SystemClock:
    """The host's monotonic clock, the same for all its processes."""

    def now_s(self) -> float:
        """``time.monotonic``."""
        return time.monotonic()


class ManualClock:
    """A clock that stands still until told otherwise."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        """The time it was set to."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move on. Raises ValueError for a negative step: this clock is monotonic too."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {seconds} s")
        self._now_s += seconds
