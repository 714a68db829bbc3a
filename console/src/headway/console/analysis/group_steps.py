"""What the ranks of one group did in one step, and who sent what each of them waited for."""

from __future__ import annotations

import polars as pl
from headway.common.errors import InputError
from headway.common.plan.grid import Axis, Grid

COLUMNS = ("rank", "action", "waiting", "chunk", "micro_batch", "start_ns", "end_ns", "late_ns",
           "ready_ns", "ready_rank")  # fmt: skip


def group_step(
    actions: pl.DataFrame, grid: Grid, axis: Axis, rank: int, step: int | None = None
) -> pl.DataFrame:
    """Records of the ranks that differ from ``rank`` on one axis only; columns ``COLUMNS``, step.

    ``ready_rank`` is the rank that sent the message, or that began the collective last, at
    ``ready_ns``; it may be outside of the group. Null where that is not known.

    Args:
        actions: as ``step_actions`` returns them.
        step: by default the newest that all of the group's recorded ranks have.

    Raises:
        InputError: the step is not recorded on any of these ranks.
    """
    members = grid.group(axis, rank)
    rows = actions.filter(pl.col("rank").is_in(members))
    chosen = _newest(rows) if step is None else step
    rows = rows.filter(pl.col("step") == chosen)
    rows = rows.filter(pl.col("generation") == pl.col("generation").max())
    if rows.is_empty():
        raise InputError(
            f"step {step if step is not None else 'of any number'} of the {axis} group of rank "
            f"{rank} is not recorded here",
            remedy="choose a step of `run.performance().slow_steps()`",
        )
    return rows.select(*COLUMNS, "step").sort("rank", "start_ns")


def _newest(rows: pl.DataFrame) -> int:
    counts = rows.group_by("step").agg(pl.col("rank").n_unique().alias("num")).sort("num", "step")
    return int(counts["step"][-1]) if len(counts) else -1
