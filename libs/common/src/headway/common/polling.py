"""Waiting for what nobody announces, for as long as it gets ahead."""

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
    """Whether a counter of another process gets ahead: only a value above all before counts.

    A process that was started again counts from 0. That may be a fresh start ``fresh_starts``
    times; after that it is one that ends again and again, and has to get past what it reached.
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
