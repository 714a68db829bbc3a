"""How many steps lie between two snapshots, if ``ckpt.snapshot_every`` is ``auto``."""

from __future__ import annotations

import statistics
from collections import deque

MOST_STEPS_APART = 64
SHARE = 0.5
"""Share of the time that may be spent on copying snapshots: the copy shares the host's memory with
the data and the messages, and what it takes longer than a step is waited for."""
NUM_TIMES = 5
"""A median over so many is not moved by one that was disturbed."""
LEAST_COPIES = 3
"""The first copies go to memory that nobody has touched yet."""


class SnapshotPace:
    """One rank's proposal; the ranks take the largest one of all."""

    def __init__(self, configured: int | str) -> None:
        """``configured``: steps, or ``auto``."""
        self._configured = configured
        self._alone_s: deque[float] = deque(maxlen=NUM_TIMES)
        """Steps during which no snapshot was copied."""
        self._beside_s: deque[float] = deque(maxlen=NUM_TIMES)
        """Steps during a copy, which may have waited for it."""
        self._copies_s: deque[float] = deque(maxlen=NUM_TIMES)

    def note(self, step_s: float, copy_s: float | None) -> None:
        """A step has taken so long, and the copy made meanwhile, from its begin to its seal.

        ``copy_s``: None without one.
        """
        if copy_s is None:
            self._alone_s.append(step_s)
        else:
            self._beside_s.append(step_s)
            self._copies_s.append(copy_s)

    @property
    def every(self) -> int:
        """Steps from one snapshot to the next: a power of two, so that longer ones are multiples.

        1 until some copies are known.
        """
        if isinstance(self._configured, int):
            return self._configured
        if len(self._copies_s) < LEAST_COPIES:
            return 1
        step_s = statistics.median(self._alone_s or self._beside_s)
        copy_s, every = statistics.median(self._copies_s), 1
        while every < MOST_STEPS_APART and copy_s > SHARE * every * step_s:
            every *= 2
        return every
