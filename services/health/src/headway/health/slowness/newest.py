"""The newest steps of a run, kept as a table while their summaries arrive in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

import numpy as np
from headway.common.plan.grid import Grid
from headway.common.wire.messages.summaries import GroupSum, StepSum, StepSummary
from headway.health.slowness.steps import (
    COLUMNS,
    MOST_LINES,
    WARM_STEPS,
    Floats,
    Ints,
    StepTable,
    known_times,
    most_ranks,
)

KEPT_STEPS = 48
HELD_STEPS = 24
"""Steps from before something became slow that are kept as long as it is."""
_NUMBERS = tuple(name for name in StepSum._fields if name != "groups")
_numbers_of = itemgetter(*map(StepSum._fields.index, _NUMBERS))
_RANK, _GENERATION, _STEP = map(_NUMBERS.index, ("rank", "generation", "step"))
_TIMES = [_NUMBERS.index(name) for name in COLUMNS]
_LINE, _WAIT = GroupSum._fields.index("line"), GroupSum._fields.index("wait_us")


class NewestSteps:
    """The newest steps of the newest generation; a newer one begins with an empty table."""

    def __init__(self, grid: Grid | None) -> None:
        self._grid = grid
        self.begin(-1)

    def begin(self, generation: int) -> None:
        """Forget all steps of earlier generations."""
        self.generation = generation
        self.newest_step = -1
        self._first_step = np.iinfo(np.int64).max
        self._steps = np.full(KEPT_STEPS, -1, np.int64)
        """By slot; a step has the slot of its number modulo ``KEPT_STEPS``."""
        self._seen_s = np.zeros(KEPT_STEPS)
        self._make_room(self._grid.world_size if self._grid else 0)
        self._held: StepTable | None = None

    def add(self, arrived: Sequence[tuple[StepSummary, float]]) -> None:
        """Take in summaries with their times of arrival; steps that are too old are left out."""
        steps = [step for summary, _ in arrived for step in summary.steps]
        if not steps:
            return
        rows = np.array([_numbers_of(step) for step in steps], np.float64)
        if (newest := int(rows[:, _GENERATION].max())) > self.generation:
            self.begin(newest)
        rank, step = rows[:, _RANK], rows[:, _STEP]
        if self._grid is None and len(self._nodes) < (most := _num_ranks(rank)):
            self._make_room(most)
        is_own = (rows[:, _GENERATION] == self.generation) & (step >= 0) & (step < 2**53)
        is_own &= (rank >= 0) & (rank < len(self._nodes))
        place = np.where(is_own, step, 0).astype(np.int64)
        sizes = [len(summary.steps) for summary, _ in arrived]
        arrived_s = np.repeat([at_s for _, at_s in arrived], sizes)
        for number, at in zip(*np.unique(place, return_index=True), strict=True):
            if is_own[place == number].any():
                self._admit(int(number), float(arrived_s[at]))
        is_own &= self._steps[place % KEPT_STEPS] == place
        at = np.flatnonzero(is_own)
        slots, ranks = place[at] % KEPT_STEPS, rank[at].astype(np.int64)
        self._times[:, slots, ranks] = known_times(rows[at][:, _TIMES].T)
        self._nodes[ranks] = np.repeat([summary.node for summary, _ in arrived], sizes)[at]
        self._add_groups([steps[row].groups for row in at], slots, ranks)

    def seen_s(self, step: int) -> float | None:
        """When the first summary of a step has arrived; None if that is not known any more."""
        slot = step % KEPT_STEPS
        return float(self._seen_s[slot]) if self._steps[slot] == step else None

    def hold(self, before: int) -> None:
        """Keep the newest steps before this one, until ``release``; a second call has no effect."""
        if self._held is None:
            table = self.table()
            end = int(np.searchsorted(table.steps, before))
            self._held = table.rows(slice(max(0, end - HELD_STEPS), end))

    def release(self) -> None:
        """Drop what is held."""
        self._held = None

    def table(self) -> StepTable:
        """What is held and the newest steps, without the first ones of the generation."""
        slots = np.argsort(self._steps, kind="stable")
        slots = slots[self._steps[slots] >= self._first_step + WARM_STEPS]
        newest = StepTable(
            self._grid or Grid(pp=max(1, len(self._nodes))), self._grid is not None,
            self._steps[slots], np.tile(self._nodes, (len(slots), 1)), self._nodes.copy(),
            {name: self._times[number][slots] for number, name in enumerate(COLUMNS)},
            {line: waits[slots] for line, waits in self._waits.items()},
        )  # fmt: skip
        if self._held is None or self._held.now_on.shape != newest.now_on.shape:
            return newest
        first = newest.steps[0] if len(slots) else self.newest_step
        return _joined(self._held.rows(np.flatnonzero(self._held.steps < first)), newest)

    def _admit(self, step: int, now_s: float) -> None:
        """Give a new step the slot of one that is older."""
        self._first_step = min(self._first_step, step)
        self.newest_step = max(self.newest_step, step)
        slot = step % KEPT_STEPS
        if self._steps[slot] < step:
            self._steps[slot], self._seen_s[slot] = step, now_s
            self._times[:, slot] = np.nan
            for waits in self._waits.values():
                waits[slot] = np.nan

    def _add_groups(self, groups: Sequence[tuple[GroupSum, ...]], slots: Ints, ranks: Ints) -> None:
        sizes = [len(one) for one in groups]
        line = np.array([group[_LINE] for one in groups for group in one], np.float64)
        wait_us = np.array([group[_WAIT] for one in groups for group in one], np.float64)
        slots, ranks = np.repeat(slots, sizes), np.repeat(ranks, sizes)
        for number in np.unique(line[(line >= 0) & (line < MOST_LINES)]).astype(int).tolist():
            if number not in self._waits:
                nothing = np.full(self._times.shape[1:], np.nan, np.float32)
                self._waits[number] = nothing
            at = line == number
            self._waits[number][slots[at], ranks[at]] = known_times(wait_us[at])

    def _make_room(self, num_ranks: int) -> None:
        """Begin with so many ranks; what is known of fewer is left out."""
        self._nodes = np.full(num_ranks, -1, np.int64)
        self._times = np.full((len(COLUMNS), KEPT_STEPS, num_ranks), np.nan, np.float32)
        self._waits: dict[int, Floats] = {}


def _num_ranks(ranks: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> int:
    return int(ranks[ranks < most_ranks(None)].max(initial=-1)) + 1


def _joined(before: StepTable, after: StepTable) -> StepTable:
    """One table of both; the steps of the first are older."""
    return replace(
        after, steps=np.concatenate([before.steps, after.steps]),
        nodes=np.concatenate([before.nodes, after.nodes]),
        times={
            name: np.concatenate([before.times[name], values])
            for name, values in after.times.items()
        },
        waits_us={
            line: np.concatenate([before.waits(line), after.waits(line)])
            for line in {*before.waits_us, *after.waits_us}
        },
    )  # fmt: skip
