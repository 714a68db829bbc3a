"""The agent's messages about finished steps: each step once, in order, without waiting."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from headway.common.node.machine import boot_id
from headway.common.wire.messages.health import WorkerSignals
from headway.common.wire.messages.summaries import StepSum, StepSummary
from headway.health.sources.steps import StepSource

MAX_STEPS_A_MESSAGE = 512
"""Up to about 200 KB."""
MAX_MESSAGES = 4
"""At a time; the rest is sent the next time."""
MAX_WAITING_STEPS = 8192
"""Kept while the monitor is away: 17 minutes of eight ranks that step every second."""


class StepSummaries:
    """Sums up what the ranks of a node have finished, and sends it."""

    def __init__(self, shm_dir: Path, run_id: str, node: int) -> None:
        self._source, self._run_id, self._node = StepSource(shm_dir), run_id, node
        self._boot_id = boot_id()
        self._waiting: deque[StepSum] = deque()
        self._sequence = self._num_dropped = 0

    def send(self, workers: Sequence[WorkerSignals], notify: Callable[[StepSummary], bool]) -> None:
        """Send what is new; if ``notify`` returns False it is sent again the next time."""
        self._waiting.extend(self._source.read(workers))
        self._num_dropped += self._source.take_cut()
        while len(self._waiting) > MAX_WAITING_STEPS:
            self._waiting.popleft()
            self._num_dropped += 1
        for _ in range(MAX_MESSAGES):
            if not self._waiting or not self._send_some(notify):
                return

    def close(self) -> None:
        self._source.close()

    def _send_some(self, notify: Callable[[StepSummary], bool]) -> bool:
        """Send the oldest steps in one message; whether it was taken."""
        steps = tuple(self._waiting)[:MAX_STEPS_A_MESSAGE]
        message = StepSummary(
            run_id=self._run_id,
            node=self._node,
            pid=os.getpid(),
            boot_id=self._boot_id,
            sequence=self._sequence + 1,
            num_dropped=self._num_dropped,
            steps=steps,
        )
        if not notify(message):
            return False
        self._sequence += 1
        self._num_dropped = 0
        for _ in steps:
            self._waiting.popleft()
        return True
