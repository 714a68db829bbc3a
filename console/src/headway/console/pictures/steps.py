"""Picture of one step of a group of ranks, with arrows from what a chosen action waited for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
from headway.common.plan.grid import Axis, Grid
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.group_steps import group_step
from headway.console.pictures.page import Picture

MAX_BARS = 60_000
"""Most bars of one picture; the longest are kept."""
NOBODY = -1
LEAST_UNIT_US, MAX_UNITS = 0.1, 2**31 - 1
"""Times are whole numbers of a unit that the longest step fits into."""
_NOTE = (
    "One row per rank. Click an action: arrows show whose message or whose entry into a collective "
    "it waited for, what that rank had waited for before, and so on. Wheel to zoom, drag to move. "
    "Thin bars are waits."
)


def group_timeline(
    actions: pl.DataFrame, grid: Grid, axis: Axis, rank: int, step: int | None = None
) -> Picture:
    """Draw the steps of a rank's tp, pp or dp group; ``actions`` as ``step_actions`` returns them.

    Raises:
        InputError: the step is not recorded on any of these ranks.
    """
    rows = group_step(actions, grid, axis, rank, step)
    number, origin_ns = int(rows["step"][0]), int(rows["start_ns"].to_numpy().min())
    if len(rows) > MAX_BARS:
        longest = rows.with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("span_ns"))
        rows = longest.top_k(MAX_BARS, by="span_ns").sort("rank", "start_ns")
    members = grid.group(axis, rank)
    kinds = rows["action"].replace_strict({kind.name: kind.value for kind in Kind}, default=0)
    unit_us = max(LEAST_UNIT_US, (rows["end_ns"].to_numpy().max() - origin_ns) / 1e3 / MAX_UNITS)

    def units(name: str, since_ns: int) -> npt.NDArray[np.int32]:
        """Times of a column; what is not known, or was before the first of them, is -1."""
        after = (rows[name] - since_ns).fill_null(-1).to_numpy()
        return np.where(after < 0, -1, after / 1e3 / unit_us).astype(np.int32)

    data = {
        "ranks": np.array(members, np.int32),
        "kinds": {str(kind.value): kind.name for kind in Kind},
        "unitUs": unit_us,
        "lane": np.searchsorted(members, rows["rank"].to_numpy()).astype(np.uint16),
        "kind": kinds.to_numpy().astype(np.uint8),
        "waits": rows["waiting"].to_numpy().astype(np.uint8),
        "chunk": rows["chunk"].to_numpy().astype(np.uint8),
        "microBatch": rows["micro_batch"].to_numpy().astype(np.int16),
        "start": units("start_ns", origin_ns),
        "end": units("end_ns", origin_ns),
        "late": units("late_ns", 0),
        "ready": units("ready_ns", origin_ns),
        "readyRank": rows["ready_rank"].fill_null(NOBODY).to_numpy().astype(np.int32),
        "chosen": _latest(rows),
    }
    size = f"{len(members)} rank{'s' * (len(members) > 1)}"
    return Picture(
        "steps", f"Step {number} of the {axis} group of rank {rank}: {size}", data, _NOTE
    )


def _latest(rows: pl.DataFrame) -> int:
    """The action that waited longest for another rank, which is chosen at first."""
    late = rows.with_row_index().filter(
        (pl.col("late_ns") > 0) & (pl.col("ready_rank") != pl.col("rank"))
    )
    return int(late.sort("late_ns")["index"][-1]) if len(late) else NOBODY
