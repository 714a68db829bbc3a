"""How fast and how well did the run go? Frames over the journal's metrics and evaluations."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from headway.console.analysis.newest import (
    PACE_STEPS,
    RATE_STEPS,
    generation_starts,
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
}
FAR = 1 << 62
EVALUATIONS = {"generation": pl.Int64, "step": pl.Int64, "loss": pl.Float64, "tokens": pl.Int64}


def load_metrics(run: RunRecords) -> pl.DataFrame:
    """One row per (generation, completed step), in the order they were done; columns
    ``METRICS``."""
    rows = run.query(f"SELECT {', '.join(METRICS)} FROM metrics ORDER BY generation, step")
    return pl.DataFrame(rows, schema=METRICS, orient="row")


def load_evaluations(run: RunRecords) -> pl.DataFrame:
    """One row per validation loss, nats per token;
    ``step`` counts the steps completed before it. Those of a course that was given up are absent.
    """
    columns = ", ".join(EVALUATIONS)
    once = "GROUP BY generation, step ORDER BY generation, step"  # planned and asked for: one loss
    rows = run.query(f"SELECT {columns} FROM evaluations {once}")
    # a generation that starts at ``first`` continues from the state that was evaluated there
    starts = {generation: first + 1 for generation, first in generation_starts(run, -1)}
    return _present_course(pl.DataFrame(rows, schema=EVALUATIONS, orient="row"), starts)


def current(metrics: pl.DataFrame) -> pl.DataFrame:
    """One row per step of the present course: a generation gives up what the older ones did from
    its first step on, whether it has come so far again or not."""
    starts = metrics.group_by("generation").agg(pl.col("step").min()).rows()
    return _present_course(metrics, dict(starts)).sort("step")


def _present_course(frame: pl.DataFrame, starts: Mapping[int, int]) -> pl.DataFrame:
    """Without rows of a generation from the first step of any newer one on.

    ``starts``: generation -> first step.
    """
    limits, limit = {}, FAR
    for generation in sorted({*starts, *frame["generation"]}, reverse=True):
        limits[generation] = limit
        limit = min(limit, starts.get(generation, FAR))
    given_up = pl.col("generation").replace_strict(limits, return_dtype=pl.Int64)
    return frame.filter(pl.col("step") < given_up) if limits else frame


def step_times(metrics: pl.DataFrame) -> pl.DataFrame:
    """By generation: steps, median and 99th percentile of the step time in seconds,
    tokens per second."""
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
