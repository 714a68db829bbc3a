"""How long each action takes, by rank and by pipeline stage."""

from __future__ import annotations

import polars as pl
from headway.console.analysis.actions import STEP_KEY, label

COLUMNS = ("pp_rank", "label", "num_per_step", "p50_s", "p99_s", "share")


def action_times(actions: pl.DataFrame) -> pl.DataFrame:
    """One row per pipeline stage and action, the longest first, columns ``COLUMNS``.

    ``p50_s`` and ``p99_s`` of the sum over one step of one rank; ``share`` of all recorded time of
    the stage's steps; waits are actions of their own. ``actions`` as ``step_actions`` returns them.
    """
    num_steps = actions.group_by("pp_rank").agg(pl.struct(STEP_KEY).n_unique().alias("num_steps"))
    total = pl.col("total_ns") / pl.col("total_ns").sum().over("pp_rank")
    return (
        _per_step(actions)
        .group_by("pp_rank", "label")
        .agg(
            pl.col("num").sum(),
            (pl.col("own_ns").quantile(0.5, "linear") * 1e-9).alias("p50_s"),
            (pl.col("own_ns").quantile(0.99, "linear") * 1e-9).alias("p99_s"),
            pl.col("own_ns").sum().alias("total_ns"),
        )
        .join(num_steps, on="pp_rank")
        .with_columns(
            (pl.col("num") / pl.col("num_steps")).alias("num_per_step"), total.alias("share")
        )
        .sort("pp_rank", "total_ns", descending=[False, True])
        .select(*COLUMNS)
    )


def heat_map(actions: pl.DataFrame) -> pl.DataFrame:
    """Seconds per step of each action (columns, the longest first) on each rank (rows): the median.

    Waits are columns of their own, ``NAME: wait``, as they show whom a rank waits for.
    """
    medians = (
        _per_step(actions)
        .group_by("rank", "label")
        .agg((pl.col("own_ns").cast(pl.Float64).median() * 1e-9).alias("s"))
    )
    totals = medians.group_by("label").agg(pl.col("s").sum()).sort("s", "label", descending=True)
    if totals.is_empty():
        return pl.DataFrame(schema={"rank": pl.Int64})
    wide = medians.pivot("label", index="rank", values="s").sort("rank")
    return wide.select("rank", *(pl.col(name).fill_null(0.0) for name in totals["label"]))


def _per_step(actions: pl.DataFrame) -> pl.DataFrame:
    return actions.group_by("pp_rank", *STEP_KEY, label()).agg(
        pl.col("own_ns").sum(), pl.len().alias("num")
    )
