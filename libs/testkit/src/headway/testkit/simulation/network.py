"""Connections between driver and executors that lose, delay, reorder and repeat messages."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Network:
    """Messages in transit, each with its own delay of at most ``delay_s``, so that they reorder."""

    random: random.Random
    loss: float = 0.0
    duplication: float = 0.0
    delay_s: float = 0.0
    cut: dict[int, float] = field(default_factory=dict)
    """Node -> until when nothing reaches it or comes from it, but for what both ends are on it."""
    _queue: list[tuple[float, int, int, int, bool, Any]] = field(default_factory=list)
    _count: int = 0

    def send(self, now: float, node: int, host: int, message: object, *, to_driver: bool) -> None:
        """Send a message between a node and the driver on node ``host``."""
        if self.loss and self.random.random() < self.loss:
            return
        copies = 1 + (self.duplication > 0 and self.random.random() < self.duplication)
        for _ in range(copies):
            delay_s = self.random.random() * self.delay_s if self.delay_s else 0.0
            self._count += 1
            heapq.heappush(
                self._queue, (now + delay_s, self._count, node, host, to_driver, message)
            )

    def arrived(self, now: float) -> list[tuple[int, bool, Any]]:
        """(node, goes to the driver, message) of the messages that have arrived."""
        found = []
        while self._queue and self._queue[0][0] <= now:
            _, _, node, host, to_driver, message = heapq.heappop(self._queue)
            cut_until = max(self.cut.get(node, 0.0), self.cut.get(host, 0.0))
            if node == host or cut_until <= now:
                found.append((node, to_driver, message))
        return found

    def calm(self) -> None:
        """End the disturbances; messages in transit arrive."""
        self.loss = self.duplication = self.delay_s = 0.0
        self.cut.clear()
