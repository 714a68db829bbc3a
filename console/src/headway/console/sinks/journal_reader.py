"""Reads what is new in a run's journal, as items for a sink in the order of the run's history.

The journal keeps a row per generation and step, so a step that a recovery repeats is there twice.
Where a generation begins below what is exported, a ``Rewind`` comes once, before its first step.
Rows that come again, or late from a generation that was rewound, are left out.
"""

from __future__ import annotations

import bisect
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from headway.common.config import leaves, to_dict, to_toml
from headway.console.analysis.episodes import Episodes
from headway.console.folder.records import WHOLE, RunRecords
from headway.console.live.progress import full_rate
from headway.console.sinks.items import Item, Rewind, Scalars, Settings, Text
from headway.console.sinks.position import Position

PAGE = 2000
"""Rows of each table that one ``read`` takes at most."""
_STEPS = (
    "SELECT rowid, generation, step, loss, grad_norm, lr, tokens, duration_s, unix_s, {skipped} "
    "FROM metrics WHERE rowid > ? ORDER BY rowid LIMIT ?"
)
_EVALUATIONS = (
    "SELECT rowid, generation, step, loss FROM evaluations WHERE rowid > ? ORDER BY rowid LIMIT ?"
)
_EVENTS = (
    "SELECT id, monotonic_s, unix_s, name, fields FROM events "
    f"WHERE id > ? AND id <= ? AND {WHOLE} ORDER BY id"
)


class HistoryReader:
    """``read`` returns the next items and moves ``position``; one thread only."""

    def __init__(self, run: RunRecords, position: Position) -> None:
        self._run, self.position = run, position
        self._history = position.history
        self._full_rate: float | None = None
        self._episodes = Episodes()
        self._feed(0, position.events_row)
        self.num_steps = self.num_evaluations = self.num_recoveries = 0
        """How many of each were read by this object."""

    def read(self) -> tuple[list[Item], bool]:
        """What is new, at most a page, and whether there may be more at once.

        Raises:
            sqlite3.Error: the journal cannot be read now.
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
        config = self._run.config
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

    def _start_of(self, generation: int) -> int | None:
        """Completed steps that a generation began with, None before its first step."""
        rows = self._run.query("SELECT MIN(step) FROM metrics WHERE generation = ?", (generation,))
        return int(rows[0][0]) if rows and rows[0][0] is not None else None

    # ---- steps --------------------------------------------------------------------------------
    def _check_rows(self) -> None:
        """Begin again where rows were renumbered, as when the journal was put back from a copy."""
        position = self.position
        if position.metrics_row:
            sql = "SELECT generation, step FROM metrics WHERE rowid = ?"
            if self._run.query(sql, (position.metrics_row,)) != [tuple(position.metrics_key)]:
                position.metrics_row = position.evaluations_row = 0

    def _steps(self) -> list[Item]:
        items: list[Item] = []
        names = {row[1] for row in self._run.query("PRAGMA table_info(metrics)")}
        # a journal of an older version does not know which steps were skipped
        sql = _STEPS.format(skipped="skipped" if "skipped" in names else "0")
        for row in self._run.query(sql, (self.position.metrics_row, PAGE)):
            rowid, generation, index, loss, norm, lr, tokens, duration_s, unix_s, skipped = row
            self.position.metrics_row = int(rowid)
            self.position.metrics_key = (int(generation), int(index))
            step, history = int(index) + 1, self._history
            if generation not in history.starts:
                start = self._start_of(generation)
                items += self._enter(generation, index if start is None else start, unix_s)
            is_known = step <= history.highest.get(generation, -1)
            if is_known or not self._holds(generation, step):
                continue
            history.highest[generation] = step
            history.top = max(history.top, step)
            if skipped:
                bisect.insort(history.skipped, step)
            rate = tokens / duration_s if duration_s > 0 else 0.0
            values = {
                "train/loss": loss,
                "train/gradient_norm": norm,
                "train/learning_rate": lr,
                "train/tokens_per_second": rate,
                "train/step_seconds": duration_s,
                "train/mfu": rate / self._full_rate if self._full_rate else None,
                "train/skipped_steps": bisect.bisect_right(history.skipped, step),
                "run/generation": generation,
                "run/recoveries": self._recovered_by(generation),
            }
            items.append(Scalars(step, unix_s, _known(values)))
            self.num_steps += 1
        return items

    # ---- validation losses --------------------------------------------------------------------
    def _evaluations(self) -> Iterator[Item]:
        history = self._history
        for row in self._run.query(_EVALUATIONS, (self.position.evaluations_row, PAGE)):
            rowid, generation, step, loss = row
            holds = self._holds(generation, step)
            if holds and step > history.top and not self._is_first(generation, step):
                return  # its steps are on a later page, or not stored yet
            if generation > history.generation and step < history.top:
                return  # its generation may take steps back: its first step shows it
            self.position.evaluations_row = int(rowid)
            if step <= history.evaluated or not holds:
                continue
            history.evaluated = int(step)
            values = _known({"validation/loss": loss})
            yield Scalars(int(step), self._time_of(generation, step), values)
            self.num_evaluations += 1

    def _is_first(self, generation: int, step: int) -> bool:
        """Whether the run has no step of an earlier place, as before its first step."""
        sql = "SELECT 1 FROM metrics WHERE generation <= ? AND step < ? LIMIT 1"
        return not self._run.query(sql, (generation, step))

    def _time_of(self, generation: int, step: int) -> float:
        """When a validation loss was measured: after the step before it, or at the beginning."""
        for sql, values in (
            (
                "SELECT unix_s FROM metrics WHERE generation = ? AND step = ?",
                (generation, step - 1),
            ),
            ("SELECT unix_s FROM generations WHERE generation = ?", (generation,)),
        ):
            rows = self._run.query(sql, values)
            if rows:
                return float(rows[0][0])
        return time.time()

    # ---- recoveries ---------------------------------------------------------------------------
    def _feed(self, after: int, until: int) -> None:
        for row in self._run.query(_EVENTS, (after, until)):
            number, now, unix_s, name, fields = row
            self._episodes.feed(str(name), float(now), float(unix_s), json.loads(fields))
            self.position.events_row = max(self.position.events_row, int(number))

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
            self.num_recoveries += 1

    def _recovered_by(self, generation: int) -> int:
        """Recoveries up to the one that began this generation."""
        found = self._episodes.all()
        return sum(0 <= recovery.generation <= generation for recovery in found)


def _known(values: Mapping[str, Any]) -> dict[str, float]:
    """Without what was not finite or is not known."""
    return {name: float(value) for name, value in values.items() if value is not None}
