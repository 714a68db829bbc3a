"""Where each rank's time went, step by step: every nanosecond is in exactly one column.

A step's row covers the time from the end of the rank's step before it to its own end, so a rank's
rows add up to the time from the start of its first step, completed or not, to the end of its last
completed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.actions import BETWEEN_STEPS, STEP_KEY, is_compute, step_actions
from headway.console.analysis.events import completed_steps
from headway.controller.client import JournalEvent

IN_STEP = {
    "compute": "forward and backward passes",
    "optimizer": "optimizer",
    "waiting": "waiting for other ranks",
    "communication": "communication that nothing hides",
    "data": "data",
    "snapshot": "snapshot in memory",
}
"""Recorded time inside of steps: column -> what it is; seconds of one rank, like the others."""
WHOLE_STEP = IN_STEP | {"unrecorded": "in a step, not recorded"}
"""Adds up to the duration of the step."""
WARM_UP = {"warm_up": "first step of a start, beyond a usual one"}
BETWEEN = {
    "evaluation": "evaluations and samples",
    "recovery": "recovery and steps done again",
    "stopped": "stopped and started again",
    "paused": "paused",
    "between": "between steps, not recorded",
}
"""Time between two steps."""
COLUMNS = WHOLE_STEP | WARM_UP | BETWEEN
"""All of it."""
_OWN = {
    Kind.OPTIMIZER.name: "optimizer",
    Kind.DATA.name: "data",
    Kind.SNAPSHOT.name: "snapshot",
}

Spans = Sequence[tuple[float, float]]
"""(begin, end) each, seconds of the run's clock."""


def ledger(
    events: pl.DataFrame,
    grid: Grid,
    *,
    recoveries: Iterable[tuple[float, float]] = (),
    pauses: Iterable[tuple[float, float]] = (),
) -> pl.DataFrame:
    """One row per rank and completed step: ``COLUMNS`` and their sum ``total``, in seconds.

    A step that a later generation did again counts as ``recovery`` altogether; ``is_kept`` is false
    then. So does the time between two generations, and what the first step of the later one took
    beyond the rank's median; where the run was stopped in between, they count as ``stopped`` and
    ``warm_up``.

    Args:
        recoveries: when the run recovered, see ``Spans``.
        pauses: when it was paused.
    """
    rows = _with_inside(_rows(events), step_actions(events, grid))
    rows = _with_gaps(rows, events, list(recoveries), list(pauses))
    rows = _with_warm_up(rows)
    again = (pl.sum_horizontal(*WHOLE_STEP, "warm_up") + pl.col("recovery")).alias("recovery")
    lost = [pl.when("is_kept").then(n).otherwise(0.0).alias(n) for n in (*WHOLE_STEP, "warm_up")]
    rows = rows.with_columns(pl.when("is_kept").then("recovery").otherwise(again), *lost)
    total = pl.sum_horizontal(*COLUMNS).alias("total")
    return rows.select(*STEP_KEY, "is_kept", *COLUMNS, total)


def pauses(journal: Iterable[JournalEvent], until_s: float) -> list[tuple[float, float]]:
    """When the run was paused by command, the last one perhaps up to ``until_s``."""
    found: list[tuple[float, float]] = []
    begin: float | None = None
    for event in journal:
        operation = event.fields.get("operation") if event.name == "command" else None
        if operation == "pause" and begin is None:
            begin = event.monotonic_s
        elif operation == "resume" and begin is not None:
            found.append((begin, event.monotonic_s))
            begin = None
    return found if begin is None else [*found, (begin, until_s)]


def _rows(events: pl.DataFrame) -> pl.DataFrame:
    """A row per completed step, with what came before: ``gap_ns`` since, and ``old`` generation."""
    first = (
        events.filter(pl.col("action") == Kind.STEP.name)
        .sort("generation", "start_ns")
        .group_by("rank", maintain_order=True)
        .agg(pl.col("start_ns").first().alias("begin"), pl.col("generation").first().alias("begun"))
    )
    steps = completed_steps(events).sort("rank", "generation", "start_ns")
    newest = pl.col("generation") == pl.col("generation").max().over("step")
    before = pl.col("generation").shift(1).over("rank")
    end = pl.col("end_ns").shift(1).over("rank")
    return (
        steps.join(first, on="rank", maintain_order="left")
        .with_columns(
            newest.alias("is_kept"),
            (pl.col("start_ns") - pl.coalesce(end, "begin")).clip(0).alias("gap_ns"),
            pl.coalesce(before, "begun").alias("old"),
            (before != pl.col("generation")).fill_null(True).alias("is_first"),
        )
        .drop("begin", "begun")
    )


def _with_inside(rows: pl.DataFrame, actions: pl.DataFrame) -> pl.DataFrame:
    """Seconds of each kind of work inside of steps; what no record covers is ``unrecorded``."""
    own, late = pl.col("own_ns"), pl.col("late_ns")
    rest = pl.when("has_peers").then(pl.lit("communication")).otherwise(pl.lit("optimizer"))
    work = pl.col("action").replace_strict(_OWN, default=rest)
    spent = actions.with_columns(
        pl.when(is_compute()).then(pl.lit("compute")).otherwise(work).alias("of")
    )
    sums = spent.group_by(STEP_KEY).agg(
        *((own - late).filter(pl.col("of") == name).sum().alias(name) for name in IN_STEP
          if name != "waiting"),
        late.sum().alias("waiting"),
    )  # fmt: skip
    known = list(IN_STEP)
    joined = rows.join(sums, on=STEP_KEY, how="left", maintain_order="left").with_columns(
        pl.col(known).fill_null(0)
    )
    unrecorded = pl.col("end_ns") - pl.col("start_ns") - pl.sum_horizontal(*known)
    return joined.with_columns(unrecorded.alias("unrecorded")).with_columns(
        pl.col(*WHOLE_STEP) * 1e-9
    )


def _with_gaps(
    rows: pl.DataFrame, events: pl.DataFrame, recovered: Spans, paused: Spans
) -> pl.DataFrame:
    """Divide the time before each step: a new generation, else evaluation, else a pause."""
    evaluated = (
        events.filter((pl.col("action").is_in(BETWEEN_STEPS)) & pl.col("end_ns").is_not_null())
        .group_by(STEP_KEY)
        .agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("eval_ns"))
    )
    rows = rows.join(evaluated, on=STEP_KEY, how="left", maintain_order="left").with_columns(
        _overlap(rows, recovered).alias("recovered_ns"), _overlap(rows, paused).alias("paused_ns")
    )
    gap = pl.col("gap_ns")
    is_new = pl.col("old") != pl.col("generation")
    has_recovered = is_new & (pl.col("recovered_ns") > 0)
    old = pl.when(is_new).then(0)
    evaluation = old.otherwise(pl.min_horizontal(gap, pl.col("eval_ns").fill_null(0)))
    rows = rows.with_columns(
        pl.when(has_recovered).then(gap).otherwise(0).alias("recovery"),
        pl.when(is_new & ~has_recovered).then(gap).otherwise(0).alias("stopped"),
        evaluation.alias("evaluation"),
    )
    left = gap - pl.sum_horizontal("recovery", "stopped", "evaluation")
    rows = rows.with_columns(pl.min_horizontal(left, "paused_ns").alias("paused"))
    rest = gap - pl.sum_horizontal("recovery", "stopped", "evaluation", "paused")
    return rows.with_columns(rest.alias("between")).with_columns(pl.col(*BETWEEN) * 1e-9)


def _with_warm_up(rows: pl.DataFrame) -> pl.DataFrame:
    """Cut the first step of a generation down to the rank's median; the rest is its start's cost.

    It allocates, and builds what later steps find ready; the other ranks wait for the slowest.
    """
    is_first = pl.col("is_first")
    spent = pl.sum_horizontal(*WHOLE_STEP)
    usual = spent.filter(~is_first).median().over("rank")
    kept = pl.when(is_first & (spent > usual)).then(usual / spent).otherwise(1.0)
    rows = rows.with_columns((spent * (1.0 - kept)).alias("beyond"), kept.alias("kept"))
    has_recovered = pl.col("recovery") > 0
    return rows.with_columns(
        *(pl.col(name) * pl.col("kept") for name in WHOLE_STEP),
        pl.when(has_recovered).then(0.0).otherwise("beyond").alias("warm_up"),
        pl.col("recovery") + pl.when(has_recovered).then("beyond").otherwise(0.0),
    )


def _overlap(rows: pl.DataFrame, spans: Spans) -> pl.Series:
    """Nanoseconds of the time before each step that lie within ``spans``."""
    end = rows["start_ns"]
    begin = end - rows["gap_ns"]
    found = pl.zeros(len(rows), pl.Int64, eager=True)
    for first_s, last_s in spans:
        shared = end.clip(upper_bound=round(last_s * 1e9)) - begin.clip(round(first_s * 1e9))
        found = found + shared.clip(0)
    return found
