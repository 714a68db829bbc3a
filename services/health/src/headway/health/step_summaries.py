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
"""Up to about 200 KB; the rest is sent with the next beat."""
MAX_WAITING_STEPS = 8192
"""Kept while the monitor is away: 17 minutes of eight ranks that step every second."""


class StepSummaries:
    """Sums up what the ranks of a node have finished, and sends it with the beats."""

    def __init__(self, shm_dir: Path, run_id: str, node: int) -> None:
        self._source, self._run_id, self._node = StepSource(shm_dir), run_id, node
        self._boot_id = boot_id()
        self._waiting: deque[StepSum] = deque()
        self._sequence = self._num_dropped = 0

    def send(self, workers: Sequence[WorkerSignals], notify: Callable[[StepSummary], bool]) -> None:
        """Send what is new; if ``notify`` returns False it is sent again with the next beat."""
        self._waiting.extend(self._source.read(workers))
        while len(self._waiting) > MAX_WAITING_STEPS:
            self._waiting.popleft()
            self._num_dropped += 1
        if not self._waiting:
            return
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
        if notify(message):
            self._sequence += 1
            self._num_dropped = 0
            for _ in steps:
                self._waiting.popleft()
