"""The driver's own clock: a stall of the driver counts as a moment,
so it is not held against the nodes."""

from __future__ import annotations

TICK_LIMIT_S = 1.0
EVENT_LIMIT_S = 0.25
"""What one tick, or any other event, can add at most. While the driver's thread is blocked, beats
wait in its socket and are handled one after the other: each must not look like a long silence of
the other nodes."""


class Clock:
    """Seconds since the driver began, as far as it was awake. All limits are measured on it.

    Args:
        now: the monotonic clock of the caller, in seconds.
    """

    def __init__(self, now: float) -> None:
        self.now = 0.0
        self._seen = now

    def advance(self, now: float, *, is_tick: bool) -> None:
        """Take in the caller's clock; one that went back adds nothing."""
        elapsed = max(0.0, now - self._seen)
        self._seen = now
        self.now += min(elapsed, TICK_LIMIT_S if is_tick else EVENT_LIMIT_S)
