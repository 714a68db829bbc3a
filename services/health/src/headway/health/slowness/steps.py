"""How all ranks spent the newest steps, as one dense table of times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from headway.common.plan.grid import Grid

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
TIMES = ("duration_us", "own_us", "data_us", "snapshot_us", "collection_us", "norm_us",
         "optimizer_us")  # fmt: skip
GROUPS = ("num", "wait_us")
MAX_STEPS = 128
"""The newest so many are judged."""
WARM_STEPS = 3
"""The first ones of a generation, which compile and fill caches, are not."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Summaries of steps by column, in any order; some may be missing, and some there twice."""

    node: Ints
    rank: Ints
    generation: Ints
    step: Ints
    times: Mapping[str, Ints]
    """By the names in ``TIMES``."""
    owner: Ints
    """Of each group's sum, the row that it belongs to."""
    line: Ints
    groups: Mapping[str, Ints]
    """By the names in ``GROUPS``."""


@dataclass(frozen=True, slots=True)
class StepTable:
    """Arrays of one row per step and one column per rank; NaN where nothing is known."""

    grid: Grid
    is_grid_known: bool
    """Else each rank counts as a stage of its own, as it is not known who does the same work."""
    steps: Ints
    nodes: Ints
    """By rank, -1 if unknown."""
    times: Mapping[str, Floats]
    groups: Mapping[int, Mapping[str, Floats]]
    """By line of the group table."""

    def by_place(self, values: Floats) -> Floats:
        """The same values by step, pipeline stage, replica, and tensor-parallel rank."""
        grid = self.grid
        return values.reshape(len(values), grid.pp, grid.dp, grid.tp)

    def rows(self, at: Ints | slice) -> StepTable:
        """The same of some steps."""
        return replace(
            self, steps=self.steps[at],
            times={name: values[at] for name, values in self.times.items()},
            groups={
                line: {name: values[at] for name, values in sums.items()}
                for line, sums in self.groups.items()
            },
        )  # fmt: skip

    def waits(self, line: int) -> Floats:
        """Time that each rank waited in the groups of a line; NaN where it has none."""
        if line in self.groups:
            return self.groups[line]["wait_us"]
        return np.full(self.times["own_us"].shape, np.nan, np.float32)


def table_of(rows: Rows, grid: Grid | None) -> StepTable:
    """The newest steps. Of a step that was repeated after a recovery, the newest one counts."""
    num_ranks = grid.world_size if grid else int(rows.rank.max(initial=0)) + 1
    is_used = (rows.rank >= 0) & (rows.rank < num_ranks) & _is_warm(rows)
    steps = np.unique(rows.step[is_used])[-MAX_STEPS:]
    is_used &= rows.step >= (steps[0] if len(steps) else 0)
    used = np.flatnonzero(is_used)
    used = used[np.argsort(rows.generation[used], kind="stable")]  # so that the newest is last
    shape = (len(steps), num_ranks)
    row_of = np.full(shape, -1, np.int64)
    row_of[np.searchsorted(steps, rows.step[used]), rows.rank[used]] = used
    cells = np.nonzero(row_of >= 0)
    kept = row_of[cells]
    times = {name: _filled(shape, cells, rows.times[name][kept]) for name in TIMES}
    nodes = np.full(num_ranks, -1, np.int64)
    nodes[rows.rank[used]] = rows.node[used]
    return StepTable(
        grid or Grid(pp=num_ranks), grid is not None, steps, nodes, times,
        _groups(rows, row_of),
    )  # fmt: skip


def _is_warm(rows: Rows) -> npt.NDArray[np.bool_]:
    """Whether each row is of a step after the first ones of its generation."""
    if not len(rows.step):
        return np.zeros(0, np.bool_)
    _, generation = np.unique(rows.generation, return_inverse=True)
    first = np.full(int(generation.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, generation, rows.step)
    return np.asarray(rows.step >= first[generation] + WARM_STEPS)


def _groups(rows: Rows, row_of: Ints) -> dict[int, dict[str, Floats]]:
    found: dict[int, dict[str, Floats]] = {}
    cell_of = np.full(len(rows.rank) + 1, -1, np.int64)
    cell_of[row_of.ravel()] = np.arange(row_of.size)
    cell_of[-1] = -1  # of the cells without a row
    cell = cell_of[rows.owner]
    for line in np.unique(rows.line).tolist():
        at = np.flatnonzero((rows.line == line) & (cell >= 0))
        cells = np.unravel_index(cell[at], row_of.shape)
        found[line] = {name: _filled(row_of.shape, cells, rows.groups[name][at]) for name in GROUPS}
    return found


def _filled(shape: tuple[int, ...], cells: tuple[Ints, ...], values: Ints) -> Floats:
    """Negative times are of damaged rows, and count as unknown."""
    table = np.full(shape, np.nan, np.float32)
    table[cells] = np.where(values >= 0, values, np.nan)
    return table
