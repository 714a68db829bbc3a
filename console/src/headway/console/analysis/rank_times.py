"""How long one action takes each rank in each step, and which ranks take longer than their peers.

Peers are the ranks of a pipeline stage: they do the same work on other data, or on other parts of
the same layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl
from headway.common.plan.grid import Grid
from headway.console.analysis.actions import is_compute, label
from headway.health.client import slow_ranks

PASSES = "forward and backward"
"""All passes of a step together, instead of one action."""
MAX_STEPS = 64
"""The newest so many steps are kept."""
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RankTimes:
    """Times of one action by rank; ``seconds`` is [steps, ranks], NaN where nothing is recorded."""

    label: str
    grid: Grid
    steps: tuple[int, ...]
    seconds: Seconds

    @cached_property
    def medians(self) -> Seconds:
        """Seconds per step of each rank."""
        return lower_median(self.seconds, axis=0)

    @cached_property
    def ratios(self) -> Seconds:
        """[steps, ranks]: over the median of the rank's peers in the same step."""
        by_stage = self._by_stage(self.seconds)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = by_stage / lower_median(by_stage, axis=2)[:, :, None]
        return found.reshape(self.seconds.shape)

    @cached_property
    def outliers(self) -> tuple[int, ...]:
        """Ranks that stay slower than their peers, the slowest first: by the rule of verdicts."""
        return slow_ranks(self.seconds, self.grid)

    def _by_stage(self, seconds: Seconds) -> Seconds:
        """[steps, stages, peers]; ranks of a stage are neighbours."""
        return seconds.reshape(len(seconds), self.grid.pp, self.grid.tp * self.grid.dp)


def times_of_actions(actions: pl.DataFrame, grid: Grid, action: str = PASSES) -> RankTimes:
    """Times from flight records, as ``step_actions`` returns them.

    Args:
        action: a name of ``labels``, such as ``forward`` or ``reduce scatter: wait``.
    """
    chosen = is_compute() if action == PASSES else label() == action
    seconds = (pl.col("own_ns") * 1e-9).alias("seconds")
    return _table(action, grid, actions.filter(chosen).with_columns(seconds))


def times_of_summaries(summaries: pl.DataFrame, grid: Grid, column: str = "own_us") -> RankTimes:
    """Times from summaries of steps, which exist for all ranks; ``own_us`` are the passes.

    A replica may have made more passes than others: its time is scaled to the step's median number.
    """
    name = PASSES if column == "own_us" else column.removesuffix("_us").replace("_", " ")
    seconds = pl.col(column) * 1e-6
    if column == "own_us":
        passes = pl.when(pl.col("num_passes") > 0).then("num_passes")
        usual = passes.median().over("generation", "step")
        seconds = seconds * (usual / passes).fill_null(1.0)
    return _table(name, grid, summaries.with_columns(seconds.alias("seconds")))


def labels(actions: pl.DataFrame) -> list[str]:
    """The actions that were recorded, those that took longest in front."""
    totals = actions.group_by(label()).agg(pl.col("own_ns").sum())
    return totals.sort("own_ns", "label", descending=[True, False])["label"].to_list()


def lower_median(values: Seconds, axis: int) -> Seconds:
    """The median without NaN; of two the lower one, so that the slower one of two ranks stands out.

    NaN where nothing is known.
    """
    ordered = np.sort(values, axis=axis)  # NaN come last
    num = np.count_nonzero(~np.isnan(ordered), axis=axis, keepdims=True)
    return np.take_along_axis(ordered, np.maximum(num - 1, 0) // 2, axis).squeeze(axis)


def _table(name: str, grid: Grid, rows: pl.DataFrame) -> RankTimes:
    """Make a table of the rows; the newest attempt at a repeated step counts."""
    newest = pl.col("generation") == pl.col("generation").max().over("step")
    sums = (
        rows.filter(newest & pl.col("rank").is_between(0, grid.world_size - 1))
        .group_by("step", "rank")
        .agg(pl.col("seconds").sum())
    )
    steps = sums["step"].unique().sort().tail(MAX_STEPS)
    sums = sums.filter(pl.col("step").is_in(steps.implode()))
    seconds = np.full((len(steps), grid.world_size), np.nan)
    place = np.searchsorted(steps.to_numpy(), sums["step"].to_numpy())
    seconds[place, sums["rank"].to_numpy()] = sums["seconds"].to_numpy()
    return RankTimes(name, grid, tuple(steps), seconds)
