"""A source of findings on a thread of its own, so that what hangs in it delays no beat."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
from headway.common.wire.messages.health import Finding
from headway.common.wire.side_thread import SideThread
from headway.health.sources.changes import Lasting

MAX_WAITING = 1024
"""Limit of pending findings, beyond which reading pauses."""
START_LIMIT_S = 1.0
"""How long the agent's start waits for a first reading, whose content counts as old."""

Place = tuple[object, ...]


class Source(Protocol):
    """Something that is read repeatedly. Its first reading is the baseline of later ones."""

    def read(self) -> list[Finding]:
        """What is new since the last call; called on the source's own thread, and may block."""

    def close(self) -> None:
        """Free what it holds; called only if no reading hangs."""


class SourceThread:
    """Reads the source that ``make`` opens. ``take`` never blocks.

    Args:
        name: of the thread.
        period_s: from the end of one reading to the next; ``math.inf`` for one that is read only
            when it is woken, after its first reading.
        deadline_s: after which a reading is reported as hung by ``hung``. It is left to itself, and
            no second one is begun.
        again_s: from one report of a reading that still hangs to the next.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Source],
        period_s: float,
        deadline_s: float,
        hung: Callable[[float], Finding],
        again_s: float = math.inf,
    ) -> None:
        self._make, self._period_s = make, period_s
        self._deadline_s, self._hung = deadline_s, hung
        self._source: Source | None = None
        self._found: dict[Place, tuple[Finding, float]] = {}
        """Pending findings with the time at which they were read, oldest first."""
        self._lock = threading.Lock()
        self._num_begun = 0
        self._num_seen = 0
        """The reading that ``_is_hung`` is about."""
        self._is_hung = Lasting(again_s=again_s)
        self._was_read = threading.Event()
        self._thread = SideThread(name, self._read)

    def await_first(self, limit_s: float = START_LIMIT_S) -> bool:
        """Wait for the baseline; whether there is one."""
        return self._was_read.wait(limit_s)

    def wake(self) -> None:
        """Have it read now; once more if it is being read."""
        self._thread.wake()

    def take(self, most: int) -> list[Finding]:
        """The oldest pending findings, at most ``most``, with their age now."""
        now_s = time.monotonic()
        busy_s = self._thread.busy_s()
        taken = []
        if self._num_seen != self._num_begun:
            self._num_seen = self._num_begun
            self._is_hung.is_due(False, now_s)
        if most > 0 and self._is_hung.is_due(busy_s > self._deadline_s, now_s):
            taken.append(self._hung(busy_s))
        with self._lock:
            for place in list(self._found)[: most - len(taken)]:
                finding, read_s = self._found.pop(place)
                age_s = finding.age_s + now_s - read_s
                taken.append(msgspec.structs.replace(finding, age_s=age_s))  # type: ignore[type-var]
        return taken

    def close(self) -> None:
        """Stop reading; a reading that hangs is left to itself."""
        if self._thread.close() and self._source is not None:
            self._source.close()

    def _read(self) -> float:
        self._num_begun += 1
        try:
            if self._source is None:
                self._source = self._make()
            if len(self._found) < MAX_WAITING:
                self._add(self._source.read())
        finally:
            self._was_read.set()
        return self._period_s

    def _add(self, findings: list[Finding]) -> None:
        """Keep findings; further ones that differ only in their place count as one with it."""
        read_s = time.monotonic()
        with self._lock:
            for finding in findings:
                place = (
                    finding.rule, finding.file, finding.inode, finding.name, finding.rank,
                    finding.detail,
                )  # fmt: skip
                if known := self._found.get(place):
                    count = known[0].count + finding.count
                    merged = msgspec.structs.replace(known[0], count=count)  # type: ignore[type-var]
                    self._found[place] = (merged, known[1])
                else:
                    self._found[place] = (finding, read_s)
