"""Steps of ranks with known times, as rows of summaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from headway.common.plan.collectives import GroupKind
from headway.common.plan.grid import Grid
from headway.health.slowness.steps import COLUMNS, Rows, StepTable, table_of

Floats = npt.NDArray[np.float64]
PASSES_US = 100_000.0
FIRST = 97
"""The number of the first step: the first three are not judged."""
DP_LINE = 2 * GroupKind.DP
TP_LINE = 2 * GroupKind.TP
RECEIVED = 2 * GroupKind.FORWARD + 1


@dataclass
class PlayedSteps:
    """By step and rank; what a fault adds is put into these arrays."""

    grid: Grid
    num_steps: int = 53
    seed: int = 0
    jitter: float = 0.01
    own_us: Floats = field(init=False)
    num_passes: Floats = field(init=False)
    data_us: Floats = field(init=False)
    snapshot_us: Floats = field(init=False)
    collection_us: Floats = field(init=False)
    other_us: Floats = field(init=False)
    waits_us: dict[int, Floats] = field(init=False)

    def __post_init__(self) -> None:
        chance = np.random.default_rng(self.seed)
        shape = (self.num_steps, self.grid.world_size)
        units = self.grid.world_size // self.grid.tp
        jitter = chance.normal(1.0, self.jitter, (self.num_steps, units))
        self.own_us = PASSES_US * np.repeat(jitter, self.grid.tp, axis=1)
        self.num_passes = np.full(shape, 16.0)
        self.data_us = np.full(shape, 0.01 * PASSES_US)
        self.snapshot_us, self.collection_us = np.zeros(shape), np.zeros(shape)
        self.other_us = 0.02 * PASSES_US * chance.lognormal(0.0, 0.1, shape)
        self.waits_us = {DP_LINE: 0.02 * PASSES_US * chance.lognormal(0.0, 0.1, shape)}

    def rows(self) -> Rows:
        """Each step of each rank once."""
        step, rank = (one.ravel() for one in np.indices(self.own_us.shape))
        waits = sum(self.waits_us[line] for line in self.waits_us if line != TP_LINE)
        parts = self.own_us + self.data_us + self.snapshot_us + self.collection_us
        times = {
            "duration_us": parts + self.other_us + waits,
            "own_us": self.own_us, "data_us": self.data_us, "snapshot_us": self.snapshot_us,
            "collection_us": self.collection_us, "num_passes": self.num_passes,
        }  # fmt: skip
        zeros = np.zeros(self.own_us.size, np.int64)
        lines = sorted(self.waits_us)
        return Rows(
            rank // 4, rank, zeros, step + FIRST,
            {name: times[name].ravel().astype(np.int64) if name in times else zeros
             for name in COLUMNS},
            np.tile(np.arange(len(rank)), len(lines)),
            np.repeat(np.array(lines, np.int64), len(rank)),
            np.concatenate([self.waits_us[one].ravel() for one in lines]).astype(np.int64),
        )  # fmt: skip

    def table(self, change: Callable[[Rows], Rows] = lambda rows: rows) -> StepTable:
        """What is judged."""
        return table_of(change(self.rows()), self.grid)


def taken(rows: Rows, places: npt.NDArray[np.int64]) -> Rows:
    """These rows in this order, with their groups; a place may be there twice or not at all."""
    owners = [np.flatnonzero(rows.owner == place) for place in places]
    at = np.concatenate([*owners, np.zeros(0, np.int64)]).astype(np.int64)
    new = np.repeat(np.arange(len(places)), [len(one) for one in owners])
    return Rows(
        rows.node[places], rows.rank[places], rows.generation[places], rows.step[places],
        {name: values[places] for name, values in rows.times.items()}, new, rows.line[at],
        rows.wait_us[at],
    )  # fmt: skip
