"""The newest steps of a run, read by index and then by row number: a long run costs no more.

No polars here: ``headway status`` needs these figures and nothing else.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.controller.client import Step

if TYPE_CHECKING:
    from headway.console.folder.records import RunRecords


RATE_STEPS = 20
"""Steps that the present rate in tokens per second is taken over."""
PACE_STEPS = 50
"""Steps that the wall time per step, and so the ETA, is taken over."""
LONGEST_GAP = 20.0
"""A gap between two steps counts as at most this many median steps, so a pause hardly counts."""


class NewestSteps:
    """The last ``PACE_STEPS`` + 1 steps of a run; ``update`` reads what is new. One thread only."""

    def __init__(self, run: RunRecords) -> None:
        self._run = run
        self._after = self._journal = -1
        self._steps: list[Step] = []

    def update(self) -> list[Step]:
        """The steps that came since the call before, in the order in which they were stored.

        The first time these are the newest ones. A step done again comes again with a higher
        generation.
        """
        records = self._run.records
        if self._journal != self._run.journal_id:
            self._journal, self._after = self._run.journal_id, -1
        if self._after < 0:
            self._after = records.newest_step_stored()
            self._steps = records.course(PACE_STEPS + 1)
            return list(self._steps)
        new = records.steps_stored(self._after)
        self._after = new[-1].row if new else self._after
        for step in new:
            if step.is_superseded:
                continue  # it was stored late
            if self._steps and step.step <= self._steps[-1].step:  # a recovery went back
                self._steps = records.course(PACE_STEPS + 1)
                break
            self._steps = [*self._steps[-PACE_STEPS:], step]
        return new

    @property
    def last(self) -> Step | None:
        """The newest completed step."""
        return self._steps[-1] if self._steps else None

    def tokens_per_s(self) -> float:
        """Present rate; 0 before the first step."""
        newest = self._steps[-RATE_STEPS:]
        spent_s = sum(step.duration_s for step in newest)
        return sum(step.tokens for step in newest) / spent_s if spent_s > 0 else 0.0

    def seconds_per_step(self) -> float:
        """Wall time from one step to the next; 0 = unknown.

        Evaluations and recoveries in between count, so an ETA made of it is honest; a pause counts
        as ``LONGEST_GAP`` median steps.
        """
        pairs = list(itertools.pairwise(self._steps))
        if not pairs:
            return 0.0
        longest_s = LONGEST_GAP * statistics.median(step.duration_s for step in self._steps)
        gaps = (min(max(after.unix_s - before.unix_s, 0.0), longest_s) for before, after in pairs)
        return sum(gaps) / len(pairs)

    def step_time_s(self, quantile: float) -> float:
        """Step time at ``quantile``, 0..1, of the steps' own durations; 0 before the first step."""
        spans = sorted(step.duration_s for step in self._steps)
        return spans[min(len(spans) - 1, int(quantile * len(spans)))] if spans else 0.0


class SkippedSteps:
    """Which steps were skipped: not finite, or spikes; up to date."""

    def __init__(self, run: RunRecords) -> None:
        self._run = run
        self._steps: list[int] | None = None

    def update(self, new: Sequence[Step], *, known: int | None = None) -> list[int]:
        """The skipped steps in order, after ``new`` ones.

        ``known`` is the driver's count, where it answered: with 0 nothing has to be looked up.
        """
        if known == 0 and not any(step.is_skipped for step in new):
            self._steps = []
        elif self._steps is None or new:
            self._steps = self._run.records.skipped_steps()
        return self._steps
