"""Which steps took longest, and why: what they spent more of than a usual step."""

from __future__ import annotations

import polars as pl
from headway.console.analysis.time_ledger import BETWEEN, COLUMNS, WHOLE_STEP

SHOWN = ("step", "generation", "total_s", "beyond_s", "cause", "rank", "cause_s")
"""Columns of the slowest steps."""
EFFECTS = ["waiting", "communication"]
"""What a rank does while another one is late: a cause only if no rank spent more on other work."""
LEAST_SHARE = 0.5
"""Least share of the time beyond the median that work not in ``EFFECTS`` has to explain."""


def step_time_quantiles(rows: pl.DataFrame) -> pl.DataFrame:
    """``p50_s``, ``p90_s``, ``p99_s``, ``highest_s`` and ``num_steps`` of the ledger's steps.

    A step's time is the mean of its ranks and counts from the end of the step before, so that
    evaluations, pauses and recoveries are in it.
    """
    total = _totals(rows)["total"]
    quantiles = {f"p{q}_s": total.quantile(q / 100, "linear") for q in (50, 90, 99)}
    return pl.DataFrame({**quantiles, "highest_s": total.max(), "num_steps": len(total)})


def slow_steps(rows: pl.DataFrame, number: int = 8) -> pl.DataFrame:
    """The ``number`` slowest steps, the slowest first, columns ``SHOWN``.

    ``cause`` is what one rank (``rank``; null where all are concerned) spent most on beyond its own
    median step: ``cause_s`` seconds, of ``beyond_s`` that the step took beyond the median one.
    """
    totals = _totals(rows)
    slowest = totals.with_columns(
        (pl.col("total") - pl.col("total").median()).alias("beyond_s")
    ).top_k(number, by="total")
    names = list(COLUMNS)
    beyond = rows.with_columns(pl.col(name) - pl.col(name).median().over("rank") for name in names)
    key = ["generation", "step"]
    long = beyond.join(slowest.select(*key), on=key).unpivot(
        names, index=["rank", *key], variable_name="of", value_name="cause_s"
    )
    highest = long.sort("cause_s", descending=True).group_by(key, maintain_order=True).first()
    is_work = ~pl.col("of").is_in(EFFECTS)
    work = long.filter(is_work).sort("cause_s", descending=True).group_by(key).first()
    both = slowest.join(work, on=key).join(highest, on=key, suffix="_any")
    explained = pl.col("cause_s") >= LEAST_SHARE * pl.min_horizontal("beyond_s", "cause_s_any")
    chosen = both.with_columns(
        pl.when(explained).then(name).otherwise(f"{name}_any").alias(name)
        for name in ("of", "rank", "cause_s")
    )
    inside = pl.col("of").is_in(list(WHOLE_STEP))
    return (
        chosen.with_columns(
            pl.col("of").replace_strict(COLUMNS).alias("cause"),
            pl.when(inside).then("rank").alias("rank"),
            pl.col("total").alias("total_s"),
        )
        .sort("total_s", descending=True)
        .select(*SHOWN)
    )


def _totals(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per kept step: ``total``, the mean of its ranks."""
    return (
        rows.filter("is_kept")
        .group_by("generation", "step")
        .agg(pl.col("total").mean(), pl.col(*BETWEEN).mean())
        .sort("step")
    )
