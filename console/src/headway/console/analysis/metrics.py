"""How fast and how well did the run go? Frames over the journal's metrics and evaluations."""

from __future__ import annotations

import polars as pl
from headway.console.records import RunRecords

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
EVALUATIONS = {"generation": pl.Int64, "step": pl.Int64, "loss": pl.Float64, "tokens": pl.Int64}


def load_metrics(run: RunRecords) -> pl.DataFrame:
    """One row per (generation, completed step), in the order they were done; columns ``METRICS``."""
    rows = run.query(f"SELECT {', '.join(METRICS)} FROM metrics ORDER BY generation, step")
    return pl.DataFrame(rows, schema=METRICS, orient="row")


def skipped_steps(run: RunRecords) -> list[int]:
    """Steps whose update was skipped for a loss or norm that was not finite, in order.

    A step that was done again counts as its newest generation did it. Journals of an older version
    do not know; then there are none.
    """
    if not any(row[1] == "skipped" for row in run.query("PRAGMA table_info(metrics)")):
        return []
    sql = (
        "SELECT step FROM metrics AS m WHERE skipped AND NOT EXISTS (SELECT 1 FROM metrics AS n "
        "WHERE n.step = m.step AND n.generation > m.generation) ORDER BY step"
    )
    return [int(row[0]) for row in run.query(sql)]


def load_evaluations(run: RunRecords) -> pl.DataFrame:
    """One row per validation loss, nats per token; ``step`` counts the steps completed before it."""
    rows = run.query(f"SELECT {', '.join(EVALUATIONS)} FROM evaluations ORDER BY generation, step")
    return pl.DataFrame(rows, schema=EVALUATIONS, orient="row")


def current(metrics: pl.DataFrame) -> pl.DataFrame:
    """One row per step: a step done again counts as its newest generation did it."""
    return metrics.sort("generation", "step").unique("step", keep="last").sort("step")


def step_times(metrics: pl.DataFrame) -> pl.DataFrame:
    """By generation: steps, median and 99th percentile of the step time in seconds, tokens per second."""
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


def throughput(metrics: pl.DataFrame, window: int = 20) -> float:
    """Tokens per second over the newest ``window`` steps, by the steps' own durations; 0 without any."""
    newest = current(metrics).tail(window)
    spent = float(newest["duration_s"].sum())
    return float(newest["tokens"].sum()) / spent if spent > 0 else 0.0


def seconds_per_step(metrics: pl.DataFrame, window: int = 50) -> float:
    """Seconds of wall time from one completed step to the next, over the newest ``window``; 0 = unknown.

    Evaluations, checkpoints and recoveries in between count, so an ETA made of it is honest. A gap longer
    than 20 median steps (a pause) counts as that much.
    """
    newest = current(metrics).tail(window + 1)
    gaps = newest["unix_s"].diff().drop_nulls()
    if gaps.is_empty():
        return 0.0
    longest = 20.0 * float(newest["duration_s"].median() or 0.0)  # type: ignore[arg-type]
    return float(gaps.clip(0.0, longest).mean() or 0.0)  # type: ignore[arg-type]
