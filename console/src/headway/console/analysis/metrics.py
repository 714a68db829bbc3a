"""Frames over the steps and the validation losses in a run's journal."""

from __future__ import annotations

import polars as pl
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
