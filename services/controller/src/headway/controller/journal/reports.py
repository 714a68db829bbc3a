"""What executors report, taken in order from each and acknowledged once it is in the journal."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headway.common.log import get_logger
from headway.common.wire.messages.driver import Report
from headway.common.wire.messages.executor import Evaluation, Sample, StepMetrics
from headway.controller.journal.journal import Journal
from headway.controller.journal.writer import JournalWriter

MAX_WAITING = 20_000
"""Reports on their way to the journal; beyond that executors keep theirs and send them again."""
RATE_STEPS = 20
"""Steps that the exported rate in tokens per second is taken over."""
_LARGEST = 2**63 - 1  # of SQLite's integers

log = get_logger("driver")
Measured = StepMetrics | Evaluation | Sample


@dataclass
class _Line:
    """The reports of one executor process."""

    incarnation: int
    expected: int
    stored: int = 0


class Reports:
    """``take`` each report, ``flush`` a few times a second."""

    def __init__(self, writer: JournalWriter, num_skipped: int = 0) -> None:
        self._writer = writer
        self.num_skipped = num_skipped
        """Steps of the journal that count and were skipped: not finite, or spikes."""
        self.newest: deque[StepMetrics] = deque(maxlen=RATE_STEPS)
        """The newest steps of the newest generation that has reported any."""
        self.measured = (-1, -1)
        """(generation, step) of the newest metrics that this driver has stored."""
        self._lines: dict[int, _Line] = {}
        self._waiting: list[tuple[int, Report]] = []
        self._is_writing = False

    def take(self, report: Report) -> None:
        """Take the next report of its executor.

        One that is early comes again, a repeated one is known.

        Only those of the node's newest executor process are to be given.
        """
        line = self._lines.get(report.node)
        if line is None or report.incarnation != line.incarnation:
            line = _Line(report.incarnation, max(1, report.oldest))
            self._lines[report.node] = line
        line.expected = max(line.expected, report.oldest)
        if report.sequence == line.expected and len(self._waiting) < MAX_WAITING:
            line.expected += 1
            self._waiting.append((report.node, report))
            if report.metrics is not None:
                self._note(report.metrics)

    def _note(self, done: StepMetrics) -> None:
        newest = (self.newest[-1].generation, self.newest[-1].step) if self.newest else (-1, -1)
        if done.generation > newest[0]:
            self.newest.clear()
        if (done.generation, done.step) > newest:  # else it is late, or of a second rank
            self.newest.append(done)

    def acknowledged(self, node: int, incarnation: int) -> int:
        """The newest report of this executor process that is in the journal."""
        line = self._lines.get(node)
        return line.stored if line is not None and line.incarnation == incarnation else 0

    def flush(self) -> None:
        """Write what waits, unless a write is under way."""
        if self._is_writing or not self._waiting:
            return
        batch, self._is_writing = list(self._waiting), True
        measured = [one for _, report in batch for one in _measured(report)]

        def write(journal: Journal) -> int:
            journal.store(measured)
            return journal.num_skipped()

        def written(num_skipped: int, error: str) -> None:
            self._is_writing = False
            if error:
                return  # they stay, and are written with the next batch
            self.num_skipped = num_skipped
            del self._waiting[: len(batch)]
            steps = [one for one in measured if isinstance(one, StepMetrics)]
            self.measured = max([self.measured, *((one.generation, one.step) for one in steps)])
            for node, report in batch:
                line = self._lines[node]
                if line.incarnation == report.incarnation:
                    line.stored = report.sequence

        self._writer.submit(write, written)


def _measured(report: Report) -> list[Measured]:
    found: list[Measured] = [
        one for one in (report.metrics, report.evaluation, report.sample) if one is not None
    ]
    good = [one for one in found if _is_storable(one)]
    if len(good) < len(found):
        log.error("a report with an impossible number is dropped", node=report.node)
    return good


def _is_storable(one: Measured) -> bool:
    numbers = [one.generation]
    if not isinstance(one, Sample):
        numbers += [one.step, one.tokens]
    return all(-1 <= number <= _LARGEST for number in numbers)
