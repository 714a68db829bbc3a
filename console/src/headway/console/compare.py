"""Two runs side by side."""

from __future__ import annotations

import polars as pl
from headway.console.run_frames import RunFrames


def compare(a: RunFrames, b: RunFrames) -> pl.DataFrame:
    """One row per step that either run has completed; null where one has not.

    Columns: ``step``, then of each run ``loss``, ``validation`` (nats per token, null at steps
    without an evaluation), ``lr`` and ``tokens_per_s``, as ``loss_a`` and ``loss_b``;
    ``loss_difference`` is b - a. Their settings are compared by ``a.config_diff(b)``.
    """
    both = _curve(a).join(_curve(b), on="step", how="full", coalesce=True, suffix="_b")
    names = {name: f"{name}_a" for name in ("loss", "validation", "lr", "tokens_per_s")}
    difference = (pl.col("loss_b") - pl.col("loss_a")).alias("loss_difference")
    return both.rename(names).with_columns(difference).sort("step")


def _curve(run: RunFrames) -> pl.DataFrame:
    rate = pl.col("tokens") / pl.col("duration_s")
    steps = run.metrics().select("step", "loss", "lr", rate.alias("tokens_per_s"))
    newest = run.evaluations().sort("generation").unique("step", keep="last")
    # an evaluation after N steps belongs to the N-th of them, which has number N - 1
    validation = newest.select(
        (pl.col("step") - 1).clip(0).alias("step"), pl.col("loss").alias("validation")
    ).unique("step", keep="last", maintain_order=True)
    joined = steps.join(validation, on="step", how="left", maintain_order="left")
    return joined.select("step", "loss", "validation", "lr", "tokens_per_s")
