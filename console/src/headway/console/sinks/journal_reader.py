"""Reads what is new in a run's journal, as items for a sink in the order of the run's history.

The journal keeps a row per generation and step, so a step that a recovery repeats is there twice.
Where a generation begins below what is exported, a ``Rewind`` comes once, before its first step.
Rows that come again, or late from a generation that was rewound, are left out.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from headway.common.config import leaves, to_dict, to_toml
from headway.console.analysis.episodes import Episodes
from headway.console.folder.records import RunRecords
from headway.console.folder.shared_config import shared
from headway.console.live.progress import full_rate
from headway.console.sinks.items import Item, Rewind, Scalars, Settings, Text
from headway.console.sinks.position import Position

PAGE = 2000
"""Rows of each table that one ``read`` takes at most."""


class HistoryReader:
    """``read`` returns the next items and moves ``position``; one thread only."""

    def __init__(self, run: RunRecords, position: Position) -> None:
        self._run, self.position = run, position
        self._history = position.history
        self._full_rate: float | None = None
        self._episodes = Episodes()
        self._feed(0, position.events_row)
        self.counts: Counter[str] = Counter()
        """How many ``steps``, ``evaluations`` and ``recoveries`` were read by this object."""

    def read(self) -> tuple[list[Item], bool]:
        """What is new, at most a page, and whether there may be more at once.

        Raises:
            UnreadableJournalError: the journal cannot be read now.
        """
        before = self.position.rows
        self._full_rate = full_rate(self._run.config, self._run.peak)
        items = [*self._settings(), *self._recoveries()]
        self._check_rows()
        items += self._steps()
        items += self._evaluations()
        return items, self.position.rows != before

    # ---- the configuration --------------------------------------------------------------------
    def _settings(self) -> Iterator[Item]:
        config = shared(self._run.config)
        text = to_toml(config)
        if text != self.position.settings:
            self.position.settings = text
            values = leaves(to_dict(config))
            yield Settings(max(0, self._history.top), time.time(), values, text)

    # ---- the history ---------------------------------------------------------------------------
    def _enter(self, generation: int, start: int, unix_s: float) -> Iterator[Item]:
        """A generation has begun with ``start`` completed steps."""
        history = self._history
        if generation in history.starts:
            return
        history.starts[generation] = start
        if generation < history.generation:
            return
        history.generation = generation
        if start < history.top:
            history.top, history.evaluated = start, min(history.evaluated, start)
            del history.skipped[bisect.bisect_right(history.skipped, start) :]
            yield Rewind(start + 1, unix_s)

    def _holds(self, generation: int, step: int) -> bool:
        """Whether no newer generation has rewound that many completed steps."""
        starts = self._history.starts.items()
        return all(step <= start for newer, start in starts if newer > generation)

    # ---- steps --------------------------------------------------------------------------------
    def _check_rows(self) -> None:
        """Begin again where rows were renumbered, as when the journal was put back from a copy."""
        position = self.position
        if not position.metrics_row:
            return
        if self._run.records.step_stored(position.metrics_row) != tuple(position.metrics_key):
            position.metrics_row = position.evaluations_row = 0

    def _steps(self) -> list[Item]:
        items: list[Item] = []
        records, history = self._run.records, self._history
        for done in records.steps_stored(self.position.metrics_row, PAGE):
            self.position.metrics_row = done.row
            self.position.metrics_key = (done.generation, done.step)
            step, generation = done.step + 1, done.generation
            if generation not in history.starts:
                start = records.first_step(generation)
                items += self._enter(generation, done.step if start is None else start, done.unix_s)
            is_known = step <= history.highest.get(generation, -1)
            if is_known or not self._holds(generation, step):
                continue
            history.highest[generation] = step
            history.top = max(history.top, step)
            if done.is_skipped:
                bisect.insort(history.skipped, step)
            rate = done.tokens_per_s
            values = {
                "train/loss": done.loss,
                "train/gradient_norm": done.grad_norm,
                "train/learning_rate": done.lr,
                "train/tokens_per_second": rate,
                "train/step_seconds": done.duration_s,
                "train/mfu": rate / self._full_rate if self._full_rate else None,
                "train/skipped_steps": bisect.bisect_right(history.skipped, step),
                "run/generation": generation,
                "run/recoveries": self._recovered_by(generation),
            }
            items.append(Scalars(step, done.unix_s, _known(values)))
            self.counts["steps"] += 1
        return items

    # ---- validation losses --------------------------------------------------------------------
    def _evaluations(self) -> Iterator[Item]:
        history, records = self._history, self._run.records
        for one in records.evaluations_stored(self.position.evaluations_row, PAGE):
            holds = self._holds(one.generation, one.step)
            is_first = not records.has_step_before(one.generation, one.step)
            if holds and one.step > history.top and not is_first:
                return  # its steps are on a later page, or not stored yet
            if one.generation > history.generation and one.step < history.top:
                return  # its generation may supersede steps: its first step shows it
            self.position.evaluations_row = one.row
            if one.step <= history.evaluated or not holds:
                continue
            history.evaluated = one.step
            at_unix_s = records.evaluated_at(one.generation, one.step)
            values = _known({"validation/loss": one.loss})
            yield Scalars(one.step, time.time() if at_unix_s is None else at_unix_s, values)
            self.counts["evaluations"] += 1

    # ---- recoveries ---------------------------------------------------------------------------
    def _feed(self, after: int, until: int) -> None:
        for one in self._run.records.events(after, until):
            self._episodes.feed(one)
            self.position.events_row = max(self.position.events_row, one.id)

    def _recoveries(self) -> Iterator[Item]:
        known = len(self._episodes.done)
        self._feed(self.position.events_row, 2**62)
        for recovery in self._episodes.done[known:]:
            at_s = recovery.at_unix_s + (recovery.total_s or 0.0) - (recovery.detect_s or 0.0)
            yield from self._enter(recovery.generation, recovery.step, at_s)
            step, took_s = recovery.step + 1, recovery.total_s or 0.0
            sentence = (
                f"{recovery.reason}; all ranks stepped again after {took_s:.1f} s, "
                f"from {recovery.step} completed steps ({recovery.source})"
            )
            yield Text(step, at_s, "recovery", sentence)
            yield Scalars(step, at_s, {"run/recovery_seconds": took_s})
            self.counts["recoveries"] += 1

    def _recovered_by(self, generation: int) -> int:
        """Recoveries up to the one that began this generation."""
        found = self._episodes.all()
        return sum(0 <= recovery.generation <= generation for recovery in found)


def _known(values: Mapping[str, Any]) -> dict[str, float]:
    """Without what was not finite or is not known."""
    return {name: float(value) for name, value in values.items() if value is not None}
