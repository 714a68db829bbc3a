"""Waiting by polling, for as long as there is progress."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], timeout_s: float, *, every_s: float = 0.02) -> bool:
    """Poll ``condition`` until it holds; False if it did not within ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


class HighWater:
    """Whether another process's counter makes progress: only a new maximum counts.

    A restarted process counts from 0. That is accepted ``fresh_starts`` times; after that it counts
    as crashing repeatedly and must exceed its earlier maximum.
    """

    def __init__(self, fresh_starts: int = 3) -> None:
        self._highest = self._last = -1
        self._fresh_starts = fresh_starts

    def rises(self, value: int) -> bool:
        """Whether ``value``, the newest, is progress."""
        if value < self._last and self._fresh_starts:
            self._fresh_starts -= 1
            self._highest = -1
        self._last = value
        if value <= self._highest:
            return False
        self._highest = value
        return True
