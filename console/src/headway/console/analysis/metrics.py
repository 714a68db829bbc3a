"""How fast and how well did the run go? Frames over the journal's metrics and evaluations."""

from __future__ import annotations

import polars as pl
from headway.console.analysis.newest import (
    PACE_STEPS,
    RATE_STEPS,
    mean_gap_s,
    tokens_per_s,
)
from headway.console.folder.records import RunRecords

METRICS = {
    "generation": pl.Int64,
    "step": pl.Int64,
    "loss": pl.Float64,
    "grad_norm": pl.Float64,
    "lr": pl.Float64,
    "tokens": pl.Int64,
    "duration_s": pl.Float64,
    "unix_s": pl.Float64,
    "skipped": pl.Boolean,
    "superseded": pl.Boolean,
}
EVALUATIONS = {"generation": pl.Int64, "step": pl.Int64, "loss": pl.Float64, "tokens": pl.Int64}


def load_metrics(run: RunRecords) -> pl.DataFrame:
    """One row per (generation, completed step), in the order they were done.

    The columns are ``METRICS``.
    """
    stored = {name: pl.Int64 if kind == pl.Boolean else kind for name, kind in METRICS.items()}
    frame = pl.DataFrame(run.records.attempts(), schema=stored, orient="row")
    return frame.with_columns(pl.col("skipped", "superseded").cast(pl.Boolean))


def load_evaluations(run: RunRecords) -> pl.DataFrame:
    """One row per validation loss that counts, nats per token.

    ``step`` counts the steps completed before it.
    """
    rows = [(one.generation, one.step, one.loss, one.tokens) for one in run.records.evaluations()]
    return pl.DataFrame(rows, schema=EVALUATIONS, orient="row")


def current(metrics: pl.DataFrame) -> pl.DataFrame:
    """One row per step that counts: without those that a newer generation superseded."""
    return metrics.filter(~pl.col("superseded")).sort("step")


def step_times(metrics: pl.DataFrame) -> pl.DataFrame:
    """Step times and throughput of each generation.

    The columns are steps, median and 99th percentile of the step time in seconds, and tokens per
    second.
    """
    return (
        metrics.group_by("generation")
        .agg(
            pl.len().alias("num_steps"),
            pl.col("duration_s").quantile(0.5, "linear").alias("p50_s"),
            pl.col("duration_s").quantile(0.99, "linear").alias("p99_s"),
            (pl.col("tokens").sum() / pl.col("duration_s").sum()).alias("tokens_per_s"),
        )
        .sort("generation")
    )


def throughput(metrics: pl.DataFrame, window: int = RATE_STEPS) -> float:
    """Tokens per second over the newest ``window`` steps, by their own durations; 0 = none."""
    newest = current(metrics).tail(window)
    return tokens_per_s(newest["tokens"].to_list(), newest["duration_s"].to_list())


def seconds_per_step(metrics: pl.DataFrame, window: int = PACE_STEPS) -> float:
    """Wall time in seconds from one completed step to the next; 0 = unknown.

    Evaluations, checkpoints and recoveries in between count, so an ETA made of it is honest; of a
    pause only ``LONGEST_GAP`` median steps do.
    """
    newest = current(metrics).tail(window + 1)
    return mean_gap_s(newest["unix_s"].to_list(), newest["duration_s"].to_list())
