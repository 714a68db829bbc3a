"""The newest steps of a run, read by index and then by row number: a long run costs no more.

No polars here: ``headway status`` needs these figures and nothing else.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.console.folder.records import RunRecords


RATE_STEPS = 20
"""Steps that the present rate in tokens per second is taken over."""
PACE_STEPS = 50
"""Steps that the wall time per step, and so the ETA, is taken over."""
LONGEST_GAP = 20.0
"""A gap between two steps counts as at most this many median steps, so a pause hardly counts."""
_COLUMNS = "generation, step, loss, grad_norm, lr, tokens, duration_s, unix_s"


@dataclass(frozen=True, slots=True)
class Step:
    """One completed optimizer step, as the journal's ``metrics`` hold it."""

    generation: int
    step: int
    loss: float | None
    """Nats per token; None if it was not finite."""
    grad_norm: float | None
    lr: float
    tokens: int
    duration_s: float
    unix_s: float
    is_skipped: bool = False
    """The update was skipped because loss or gradient norm was not finite, or a spike."""

    @property
    def tokens_per_s(self) -> float:
        """By the step's own duration; 0 if that is unknown."""
        return self.tokens / self.duration_s if self.duration_s > 0 else 0.0


def tokens_per_s(tokens: Sequence[int], durations_s: Sequence[float]) -> float:
    """Rate over some steps by their own durations; 0 without any."""
    spent_s = sum(durations_s)
    return sum(tokens) / spent_s if spent_s > 0 else 0.0


def mean_gap_s(unix_s: Sequence[float], durations_s: Sequence[float]) -> float:
    """Wall time from one step to the next, evaluations and recoveries included; 0 = unknown.

    A pause counts as ``LONGEST_GAP`` median steps.
    """
    gaps = [after - before for before, after in itertools.pairwise(unix_s)]
    if not gaps:
        return 0.0
    longest = LONGEST_GAP * statistics.median(durations_s)
    return sum(min(max(gap, 0.0), longest) for gap in gaps) / len(gaps)


class StepReader:
    """``read`` returns the steps that came since the call before; the first time the newest ones.

    One thread only. A step done again, after a recovery, comes again with a higher generation.
    """

    def __init__(self, run: RunRecords, first: int = PACE_STEPS + 1) -> None:
        self._run, self._first = run, first
        self._after = self._journal = -1
        self._columns = ""

    def read(self) -> list[Step]:
        """New steps in the order in which they were stored."""
        if self._journal != self._run.journal_id:
            self._journal, self._after = self._run.journal_id, -1
        if not self._columns and not self._find_columns():
            return []
        if self._after >= 0:
            sql = f"SELECT rowid, {self._columns} FROM metrics WHERE rowid > ? ORDER BY rowid"
            rows = self._run.query(sql, (self._after,))
            self._after = max([self._after, *(int(row[0]) for row in rows)])
            return [_step(row[1:]) for row in rows]
        newest = self._run.query("SELECT MAX(rowid) FROM metrics")
        self._after = int((newest[0][0] if newest else 0) or 0)
        return self.newest(self._first)

    def newest(self, number: int) -> list[Step]:
        """The last ``number`` steps of the run's present course, oldest first, each step once."""
        if not self._columns and not self._find_columns():
            return []
        sql = f"SELECT {self._columns} FROM metrics ORDER BY generation DESC, step DESC LIMIT ?"
        rows = [_step(row) for row in self._run.query(sql, (number,))]
        found: list[Step] = []
        for step in rows:  # an older generation's steps from the restart on were taken back
            if not found or step.step < found[-1].step:
                found.append(step)
        if len(rows) == number > len(found):
            found += self._before(found[-1], number - len(found))
        return found[:number][::-1]

    def _before(self, last: Step, number: int) -> list[Step]:
        """The same, one generation after the other: many steps were taken back. Newest first."""
        found: list[Step] = []
        generation, step = last.generation, last.step
        of_one = (
            f"SELECT {self._columns} FROM metrics WHERE generation = ? AND step < ? "
            "ORDER BY step DESC LIMIT ?"
        )
        while generation is not None and len(found) < number:
            rows = self._run.query(of_one, (generation, step, number - len(found)))
            found += [_step(row) for row in rows]
            step = found[-1].step if found else step
            older = "SELECT MAX(generation) FROM metrics WHERE generation < ?"
            generation = self._run.query(older, (generation,))[0][0]
        return found

    def spans(self, probes: str) -> list[Step]:
        """The steps of some spans, a JSON list of [generation, first, last], in this order."""
        columns = ", ".join(f"m.{name}" for name in self._columns.split(", ") if name != "0")
        columns += ", 0" * self._columns.endswith(", 0")
        sql = (
            f"SELECT {columns} FROM json_each(?) AS probe CROSS JOIN metrics AS m "
            "ON m.generation = json_extract(probe.value, '$[0]') AND m.step BETWEEN "
            "json_extract(probe.value, '$[1]') AND json_extract(probe.value, '$[2]') "
            "ORDER BY probe.key, m.step"
        )
        return [_step(row) for row in self._run.query(sql, (probes,))]

    def _find_columns(self) -> bool:
        names = {row[1] for row in self._run.query("PRAGMA table_info(metrics)")}
        if names:  # a journal of an older version does not know which steps were skipped
            self._columns = _COLUMNS + (", skipped" if "skipped" in names else ", 0")
        return bool(names)


def _step(row: Sequence[Any]) -> Step:
    generation, step, loss, grad_norm, lr, tokens, duration_s, unix_s, is_skipped = row
    return Step(generation, step, loss, grad_norm, lr, tokens, duration_s, unix_s, bool(is_skipped))


class NewestSteps:
    """The last ``PACE_STEPS`` + 1 steps of a run's present course; ``update`` reads what is new."""

    def __init__(self, run: RunRecords) -> None:
        self._reader = StepReader(run)
        self._steps: list[Step] = []

    def update(self) -> list[Step]:
        """Take in what is new, and return that."""
        new = self._reader.read()
        for step in new:
            if self._steps and step.step <= self._steps[-1].step:  # a recovery took some back
                self._steps = self._reader.newest(PACE_STEPS + 1)
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
        return tokens_per_s([s.tokens for s in newest], [s.duration_s for s in newest])

    def seconds_per_step(self) -> float:
        """Wall time from one step to the next; 0 = unknown."""
        return mean_gap_s([s.unix_s for s in self._steps], [s.duration_s for s in self._steps])

    def step_time_s(self, quantile: float) -> float:
        """Of the steps' own durations, between 0 and 1; 0 before the first step."""
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
        if self._steps is None:
            if known == 0 and not any(step.is_skipped for step in new):
                return []
            self._steps = skipped_steps(self._run)
        for step in new:
            # from there on a recovery took them back
            del self._steps[bisect.bisect_left(self._steps, step.step) :]
            if step.is_skipped:
                self._steps.append(step.step)
        return self._steps


def skipped_steps(run: RunRecords) -> list[int]:
    """Steps whose update was skipped, not finite or spikes, in order.

    Those that a recovery took back do not count. Journals of an older version do not know; then
    there are none.
    """
    if not any(row[1] == "skipped" for row in run.query("PRAGMA table_info(metrics)")):
        return []
    # 2 = taken back; ``skipped`` alone is the condition of the index
    rows = run.query("SELECT step FROM metrics WHERE skipped AND skipped = 1 ORDER BY step")
    return [int(row[0]) for row in rows]


def generation_starts(run: RunRecords, after: int) -> list[tuple[int, int]]:
    """Each generation above ``after`` that completed a step, in order, and its first step."""
    # generation and step in one number: one look into the index for each generation
    first_after = (
        "SELECT generation << 40 | step FROM metrics WHERE generation > {} "
        "ORDER BY generation, step LIMIT 1"
    )
    sql = (
        f"WITH RECURSIVE starts(both) AS (SELECT ({first_after.format('?')}) "
        f"UNION ALL SELECT ({first_after.format('(both >> 40)')}) FROM starts "
        "WHERE both IS NOT NULL) SELECT both FROM starts WHERE both IS NOT NULL"
    )
    return [(both >> 40, both & (1 << 40) - 1) for (both,) in run.query(sql, (after,))]


def repeated_steps(run: RunRecords, generation: int, step: int) -> int:
    """Completed steps that ``generation``, which began at ``step``, does again."""
    sql = (
        "SELECT MAX(step) FROM metrics WHERE generation = "
        "(SELECT MAX(generation) FROM metrics WHERE generation < ?)"
    )
    rows = run.query(sql, (generation,))
    newest = rows[0][0] if rows else None
    return 0 if newest is None else max(0, int(newest) + 1 - step)
