"""How all ranks spent the newest steps, as one dense table of times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.common.plan.grid import Grid

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
TIMES = ("duration_us", "own_us", "data_us", "snapshot_us", "collection_us", "norm_us",
         "optimizer_us")  # fmt: skip
COLUMNS = (*TIMES, "num_passes")
MAX_STEPS = 128
"""The newest so many are judged."""
WARM_STEPS = 3
"""The first ones of a generation, which compile and fill caches, are not."""
MOST_RANKS = 1 << 14
"""Most ranks of a run whose grid is unknown; rows of ranks beyond are left out."""
MOST_LINES = 64
"""Most lines of the group table; what rows say of lines beyond is left out."""
OVER_STEPS = 3
"""So many steps without it end what was slow; the newest one or two may be chance."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Summaries of steps by column, in any order; some may be missing, and some there twice."""

    node: Ints
    rank: Ints
    generation: Ints
    step: Ints
    times: Mapping[str, Ints]
    """By the names in ``COLUMNS``: a count beside the times."""
    owner: Ints
    """Row that each group's sum belongs to."""
    line: Ints
    wait_us: Ints
    """Time that the row's rank waited in the group of a line."""


@dataclass(frozen=True, slots=True)
class StepTable:
    """Arrays of one row per step and one column per rank; NaN where nothing is known."""

    grid: Grid
    is_grid_known: bool
    """Else each rank counts as a stage of its own, as it is not known who does the same work."""
    steps: Ints
    nodes: Ints
    """By step and rank, -1 if unknown."""
    now_on: Ints
    """By rank, the node that it runs on now; -1 if unknown."""
    times: Mapping[str, Floats]
    waits_us: Mapping[int, Floats]
    """By line of the group table, the time that ranks waited in it."""

    def by_place(self, values: Floats) -> Floats:
        """Reshape values to step, pipeline stage, replica, and tensor-parallel rank."""
        grid = self.grid
        return values.reshape(len(values), grid.pp, grid.dp, grid.tp)

    def rows(self, at: Ints | slice) -> StepTable:
        """The table of some steps only."""
        return replace(
            self, steps=self.steps[at], nodes=self.nodes[at],
            times={name: values[at] for name, values in self.times.items()},
            waits_us={line: values[at] for line, values in self.waits_us.items()},
        )  # fmt: skip

    def waits(self, line: int) -> Floats:
        """Time that each rank waited in the groups of a line; NaN where it has none."""
        if line in self.waits_us:
            return self.waits_us[line]
        return np.full(self.times["own_us"].shape, np.nan, np.float32)

    def first_step(self, start: int) -> int | None:
        """The step of the first row that shows something; None if all that are known may."""
        return int(self.steps[start]) if start > 0 else None

    def last_step(self, end: int) -> int | None:
        """The step of the last row before ``end``; None if what it shows is not over."""
        return int(self.steps[end - 1]) if end + OVER_STEPS <= len(self.steps) else None

    def within(self, since: int | None, until: int | None) -> slice:
        """The rows of these steps, both included; None is the first or the last one."""
        start = 0 if since is None else int(np.searchsorted(self.steps, since))
        end = len(self.steps)
        if until is not None:
            end = int(np.searchsorted(self.steps, until, side="right"))
        return slice(start, end)

    def nodes_of(self, ranks: tuple[int, ...], until: int | None) -> Ints:
        """The node of each of these ranks up to a step, the newest one that is known."""
        known = self.nodes[self.within(None, until)][:, list(ranks)]
        if not len(known):
            return np.full(len(ranks), -1, np.int64)
        last = len(known) - 1 - np.argmax(known[::-1] >= 0, axis=0)
        return np.asarray(known[last, np.arange(len(ranks))], np.int64)


def table_of(rows: Rows, grid: Grid | None) -> StepTable:
    """The newest steps; ranks that the run cannot have are left out."""
    known = np.flatnonzero((rows.rank >= 0) & (rows.rank < most_ranks(grid)))
    num_ranks = grid.world_size if grid else int(rows.rank[known].max(initial=0)) + 1
    used = known[_is_judged(rows.generation[known], rows.step[known])]
    steps = np.unique(rows.step[used])[-MAX_STEPS:]
    used = used[rows.step[used] >= (steps[0] if len(steps) else 0)]
    shape = (len(steps), num_ranks)
    row_of = np.full(shape, -1, np.int64)
    row_of[np.searchsorted(steps, rows.step[used]), rows.rank[used]] = used
    cells = np.nonzero(row_of >= 0)
    kept = row_of[cells]
    nodes = np.full(shape, -1, np.int64)
    nodes[cells] = rows.node[kept]
    by_age = known[np.lexsort((rows.step[known], rows.generation[known]))]
    now_on = np.full(num_ranks, -1, np.int64)
    now_on[rows.rank[by_age]] = rows.node[by_age]
    return StepTable(
        grid or Grid(pp=num_ranks), grid is not None, steps, nodes, now_on,
        {name: _filled(shape, cells, rows.times[name][kept]) for name in COLUMNS},
        _waits(rows, row_of),
    )  # fmt: skip


def most_ranks(grid: Grid | None) -> int:
    """How many ranks a run may have."""
    return grid.world_size if grid else MOST_RANKS


def _is_judged(generation: Ints, step: Ints) -> npt.NDArray[np.bool_]:
    """Whether each row counts.

    Neither the first steps of its generation do, nor steps from which on a newer one has begun
    again. A generation of which there is one row among many of others is a damaged number.
    """
    if not len(step):
        return np.zeros(0, np.bool_)
    _, number, counts = np.unique(generation, return_inverse=True, return_counts=True)
    never = np.iinfo(np.int64).max
    first = np.full(int(number.max()) + 1, never)
    is_real = (counts > 1)[number] | (len(step) == len(counts))
    np.minimum.at(first, number[is_real], step[is_real])
    again = np.minimum.accumulate(np.append(first[1:], never)[::-1])[::-1]
    is_warm = step >= np.minimum(first, never - WARM_STEPS)[number] + WARM_STEPS
    return np.asarray(is_real & is_warm & (step < again[number]))


def _waits(rows: Rows, row_of: Ints) -> dict[int, Floats]:
    found: dict[int, Floats] = {}
    cell_of = np.full(len(rows.rank) + 1, -1, np.int64)
    cell_of[row_of.ravel()] = np.arange(row_of.size)
    cell_of[-1] = -1  # of the cells without a row
    cell = cell_of[rows.owner]
    for line in np.unique(rows.line[(rows.line >= 0) & (rows.line < MOST_LINES)]).tolist():
        at = np.flatnonzero((rows.line == line) & (cell >= 0))
        cells = np.unravel_index(cell[at], row_of.shape)
        found[line] = _filled(row_of.shape, cells, rows.wait_us[at])
    return found


def known_times(values: npt.NDArray[Any]) -> Floats:
    """Negative times are of damaged rows, and count as unknown."""
    return np.where(values >= 0, values, np.nan).astype(np.float32)


def _filled(shape: tuple[int, ...], cells: tuple[Ints, ...], values: Ints) -> Floats:
    table = np.full(shape, np.nan, np.float32)
    table[cells] = known_times(values)
    return table
