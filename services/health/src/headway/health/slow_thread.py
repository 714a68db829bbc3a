"""Judges how ranks spend their steps beside the monitor's loop, which is never kept waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from headway.common.plan.grid import Grid
from headway.common.wire.messages.summaries import StepSummary
from headway.common.wire.side_thread import SideThread
from headway.health.config import HealthConfig
from headway.health.slowness.live import LiveJudgement, LiveSlowness

LOOK_S: Final = 1.0
"""How often summaries are taken in, so that few wait as messages, which need ten times the memory,
and the newest steps are judged: those of a few ranks take some milliseconds."""
REST: Final = 19.0
"""How many times as long as a judgement took of a processor the next one waits: those of 12,288
ranks take 1.5 s each."""
AT_ONCE: Final = 64
"""Summaries that are taken in by one call: the loop's thread waits for each to end."""


class SlowThread:
    """``add`` and ``run_callbacks`` are for the loop's thread."""

    def __init__(
        self, grid: Grid | None, config: HealthConfig, then: Callable[[LiveJudgement], object]
    ) -> None:
        """``then`` is called in the loop's thread, which watches ``done_fd``."""
        self._live, self._then = LiveSlowness(grid, config), then
        self._waiting: list[tuple[StepSummary, float]] = []
        self._lock = threading.Lock()
        self._judge_at_s = 0.0
        self._thread = SideThread("slowness", self._look, first_s=LOOK_S)
        self.done_fd, self.run_callbacks = self._thread.done_fd, self._thread.run_callbacks

    def add(self, summary: StepSummary) -> None:
        """Have a summary judged soon."""
        with self._lock:
            self._waiting.append((summary, time.monotonic()))

    def close(self) -> None:
        """End it; what is being judged is dropped."""
        self._thread.close()

    def _look(self) -> float:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for first in range(0, len(waiting), AT_ONCE):
            self._live.add(waiting[first : first + AT_ONCE])
        if time.monotonic() >= self._judge_at_s:
            self._judge()
        return LOOK_S

    def _judge(self) -> None:
        began_s = time.thread_time()
        if (judged := self._live.judge(time.monotonic())) is not None:
            self._thread.hand_back(partial(self._then, judged))
        self._judge_at_s = time.monotonic() + REST * (time.thread_time() - began_s)
