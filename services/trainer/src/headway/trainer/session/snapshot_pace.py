"""How many steps lie between two snapshots, if ``ckpt.snapshot_every`` is ``auto``."""

from __future__ import annotations

import statistics
from collections import deque

from headway.ckpt_store.config import MOST_STEPS_APART

SHARE = 0.5
"""Share of the time that may be spent on copying snapshots: the copy shares the host's memory with
the data and the messages, and what it takes longer than a step is waited for."""
NUM_TIMES = 5
"""A median over so many is not moved by one that was disturbed."""


class SnapshotPace:
    """One rank's proposal; the ranks take the largest one of all."""

    def __init__(self, configured: int | str) -> None:
        """``configured``: steps, or ``auto``."""
        self._configured = configured
        self._steps_s: deque[float] = deque(maxlen=NUM_TIMES)
        self._copies_s: deque[float] = deque(maxlen=NUM_TIMES)

    def note_step(self, seconds: float) -> None:
        """A step has taken so long, without the wait for the snapshot under way."""
        self._steps_s.append(seconds)

    def note_copy(self, seconds: float) -> None:
        """A snapshot has taken so long, from its begin to its seal."""
        self._copies_s.append(seconds)

    @property
    def every(self) -> int:
        """Steps from one snapshot to the next: a power of two, so that longer ones are multiples.

        1 until both times are known.
        """
        if isinstance(self._configured, int):
            return self._configured
        if not self._steps_s or not self._copies_s:
            return 1
        step_s, copy_s = map(statistics.median, (self._steps_s, self._copies_s))
        every = 1
        while every < MOST_STEPS_APART and copy_s > SHARE * every * step_s:
            every *= 2
        return every
