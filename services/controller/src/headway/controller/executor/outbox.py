"""What the driver has to store, kept until it says that it has."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headway.common.wire.messages.driver import Report
from headway.common.wire.messages.executor import Evaluation, Sample, StepMetrics

MAX_REPORTS = 100_000
"""About 50 MB; the oldest fall out first and are counted."""
MAX_AT_ONCE = 256
PATIENCE = 8
"""Beats without an acknowledgement after which everything that is missing one is sent again."""

What = StepMetrics | Evaluation | Sample


@dataclass(frozen=True)
class _Kept:
    sequence: int
    worker: str
    what: What


class Outbox:
    """Numbered from 1 by each executor process; no clock takes part, so none can be set back."""

    def __init__(self, node: int, incarnation: int, *, limit: int = MAX_REPORTS) -> None:
        self._node, self._incarnation, self._limit = node, incarnation, limit
        self._kept: deque[_Kept] = deque()
        self._sequence = 0
        self._sent = 0
        self._waited = 0
        self.num_lost = 0
        """Reports that fell out before a driver had stored them."""
        self._stored: dict[str, tuple[int, int]] = {}
        self.measured = (-1, -1)
        """(generation, step) of the newest metrics of the run that the driver has stored."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def oldest(self) -> int:
        """Sequence of the oldest report kept, or of the next one: none below it will come."""
        return self._kept[0].sequence if self._kept else self._sequence + 1

    def add(self, worker: str, what: What) -> None:
        """Keep something until a driver acknowledges it."""
        self._sequence += 1
        self._kept.append(_Kept(self._sequence, worker, what))
        if len(self._kept) > self._limit:
            self._kept.popleft()
            self.num_lost += 1

    def acknowledge(self, sequence: int) -> None:
        """Forget what the driver has stored, up to ``sequence``."""
        if self._kept and self._kept[0].sequence <= sequence:
            self._waited = 0
        while self._kept and self._kept[0].sequence <= sequence:
            kept = self._kept.popleft()
            if isinstance(kept.what, StepMetrics):
                self._stored[kept.worker] = (kept.what.generation, kept.what.step)

    def stored(self, worker: str) -> tuple[int, int]:
        """(generation, step) of the newest metrics of a worker that a driver has stored."""
        return self._stored.get(worker, (-1, -1))

    def forget(self, worker: str) -> None:
        """The worker has ended: nobody will ask what was stored of it."""
        self._stored.pop(worker, None)

    def begin_again(self) -> None:
        """Another driver is connected, or messages were lost: send everything that is kept."""
        self._sent, self._waited = 0, 0

    def missed_beat(self) -> None:
        """A beat went out; too many without an acknowledgement, and everything is sent again."""
        is_waiting = bool(self._kept) and self._sent >= self._kept[0].sequence
        self._waited = self._waited + 1 if is_waiting else 0
        if self._waited >= PATIENCE:
            self.begin_again()

    def send(self, send: Callable[[Report], bool], at_most: int = MAX_AT_ONCE) -> None:
        """Hand what was not sent yet to ``send``, in order.

        It stops when ``send`` returns False or ``at_most`` reports went out.
        """
        if not self._kept:
            return
        first = self._kept[0].sequence
        begin = max(0, self._sent + 1 - first)
        for index in range(begin, min(len(self._kept), begin + at_most)):
            if not send(self._message(self._kept[index])):
                return
            self._sent = self._kept[index].sequence

    def _message(self, kept: _Kept) -> Report:
        what = kept.what
        return Report(
            node=self._node,
            sequence=kept.sequence,
            oldest=self.oldest,
            incarnation=self._incarnation,
            metrics=what if isinstance(what, StepMetrics) else None,
            evaluation=what if isinstance(what, Evaluation) else None,
            sample=what if isinstance(what, Sample) else None,
        )
