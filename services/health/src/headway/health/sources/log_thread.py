"""The tail of the training logs on a separate thread, so that a hung disk delays no beat."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from headway.common.wire.messages.health import LogHit
from headway.common.wire.side_thread import SideThread
from headway.health.sources.train_log import LogTail

MAX_WAITING_HITS = 1024
"""Limit of pending matched lines, beyond which reading pauses."""
START_LIMIT_S = 1.0
"""How long the agent's start waits for the first read of the logs, whose content counts as old."""


class LogThread:
    """Polls the tail that ``make`` opens. ``take`` never blocks."""

    def __init__(self, make: Callable[[], LogTail], max_bytes: int, period_s: float) -> None:
        self._make, self._max_bytes, self._period_s = make, max_bytes, period_s
        self._tail: LogTail | None = None
        self._found: deque[LogHit] = deque()
        self._was_polled = threading.Event()
        self._thread = SideThread("logs", self._poll)
        self._was_polled.wait(START_LIMIT_S)

    def take(self, most: int) -> list[LogHit]:
        """The oldest pending lines, at most ``most``."""
        return [self._found.popleft() for _ in range(min(most, len(self._found)))]

    def close(self) -> None:
        self._thread.close()

    def _poll(self) -> float:
        try:
            if self._tail is None:
                self._tail = self._make()
            if len(self._found) < MAX_WAITING_HITS:
                self._found.extend(self._tail.poll(self._max_bytes))
        finally:
            self._was_polled.set()
        return self._period_s
