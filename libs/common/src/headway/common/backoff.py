"""Pauses between attempts that double with each failure in a row."""

from __future__ import annotations


class Backoff:
    """Knows no clock: the caller says what time it is."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self.failures = 0
        """In a row."""
        self.until_s = 0.0
        """No attempt before that."""

    @property
    def pause_s(self) -> float:
        """How long the next failure pauses."""
        return min(self._first_s * 2.0 ** min(self.failures, 60), self._longest_s)

    def fail(self, now: float) -> None:
        """An attempt has failed."""
        self.until_s = now + self.pause_s
        self.failures += 1

    def succeed(self) -> None:
        """An attempt has proved good."""
        self.failures, self.until_s = 0, 0.0

    def is_over(self, now: float) -> bool:
        """Whether another attempt may be made."""
        return now >= self.until_s
