"""What each rank did inside its completed steps, and whom it waited for.

The records of a wait do not say why it lasted. Where both sides are recorded by one host, a wait is
divided in two: ``late_ns``, before the other side had begun its part, is time that this rank had
nothing to do; what follows is the transfer itself.
"""

from __future__ import annotations

import polars as pl
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import COMPUTE, RECEIVES, SENDS, Kind
from headway.console.analysis.events import completed_steps

STEP_KEY = ["rank", "generation", "step"]
COLLECTIVES = [Kind.ALL_GATHER.name, Kind.REDUCE_SCATTER.name]
MESSAGES = sorted(kind.name for kind in SENDS | RECEIVES)
BETWEEN_STEPS = [Kind.EVAL.name, Kind.SAMPLE.name]
FRAMES = [Kind.STEP.name, *BETWEEN_STEPS, Kind.RESTORE.name, Kind.JOIN.name]
"""Records that contain others, or stand outside of steps."""


def step_actions(events: pl.DataFrame, grid: Grid) -> pl.DataFrame:
    """One row per record inside a completed step; those of evaluations are left out.

    Columns of ``events``, and ``pp_rank``, ``dp_rank``, ``tp_rank``; ``has_peers``, whether other
    ranks of this grid take part; ``own_ns``, the duration without what an earlier record covers, so
    that they add up; ``ready_ns``, when the other side had begun, and ``ready_rank``, who of it was
    the last to (null where that is not known); and ``late_ns``, see above.
    """
    steps = completed_steps(events)
    inside = (
        events.filter(pl.col("end_ns").is_not_null() & ~pl.col("action").is_in(FRAMES))
        .join(steps, on=STEP_KEY, suffix="_step")
        .filter(
            (pl.col("start_ns") >= pl.col("start_ns_step"))
            & (pl.col("end_ns") <= pl.col("end_ns_step"))
        )
        .drop("start_ns_step", "end_ns_step")
        .with_columns(*coordinates(grid), _has_peers(grid))
    )
    return _with_late(_with_own(inside), grid)


def coordinates(grid: Grid) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
    """``pp_rank``, ``dp_rank`` and ``tp_rank`` of the column ``rank``."""
    rank = pl.col("rank")
    return (
        (rank // (grid.tp * grid.dp)).alias("pp_rank"),
        (rank // grid.tp % grid.dp).alias("dp_rank"),
        (rank % grid.tp).alias("tp_rank"),
    )


def _has_peers(grid: Grid) -> pl.Expr:
    """A schedule has the same actions on every grid: in a group of one they only copy."""
    shared = [*(COLLECTIVES if grid.dp > 1 else ()), *(MESSAGES if grid.pp > 1 else ())]
    shared += [Kind.NORM.name] if grid.world_size > 1 else []
    return pl.col("action").is_in(shared).alias("has_peers")


def is_compute() -> pl.Expr:
    """Forward and backward passes."""
    return pl.col("action").is_in([kind.name for kind in COMPUTE]) & ~pl.col("waiting")


def label() -> pl.Expr:
    """The action's name for people; waits are rows of their own."""
    plain = pl.col("action").str.to_lowercase().str.replace_all("_", " ")
    return pl.when("waiting").then(pl.format("{}: wait", plain)).otherwise(plain).alias("label")


def _with_own(actions: pl.DataFrame) -> pl.DataFrame:
    """Records of a rank follow each other; should two overlap, the later one counts from there.

    A pass that waits for the parameters of its later layers has that wait within it, and is shorter
    by it; that is seen on the host only, since a device may do a pass while the host is behind it.
    """
    ordered = actions.sort("rank", "start_ns", "sequence")
    covered = pl.col("end_ns").cum_max().shift(1).over(STEP_KEY)
    begin = pl.max_horizontal("start_ns", covered.fill_null(0))
    is_within = pl.col("waiting") & pl.col("action").is_in(COLLECTIVES)
    is_within &= pl.col("end_ns") <= covered.fill_null(0)
    is_on_host = pl.when(is_compute()).then(pl.col("device") == 0).forward_fill().over(STEP_KEY)
    is_within &= is_on_host.fill_null(value=False)
    whole = pl.col("end_ns") - pl.col("start_ns")
    own = pl.when("is_within").then(whole).otherwise((pl.col("end_ns") - begin).clip(0))
    spent_within = pl.when("is_within").then(whole).otherwise(0).sum()
    spent_within = spent_within.over([*STEP_KEY, "pass"])
    return (
        ordered.with_columns(
            is_within.alias("is_within"), is_compute().cum_sum().over(STEP_KEY).alias("pass")
        )
        .with_columns(own.alias("own_ns"), spent_within.alias("spent_within"))
        .with_columns(
            pl.when(is_compute())
            .then(pl.col("own_ns") - pl.col("spent_within"))
            .otherwise("own_ns")
            .alias("own_ns")
        )
        .drop("is_within", "pass", "spent_within")
    )


def _with_late(actions: pl.DataFrame, grid: Grid) -> pl.DataFrame:
    ready = pl.concat([_sent(actions, grid), _issued(actions), _arrived(actions)])
    key = ["rank", "generation", "step", "action", "chunk", "micro_batch"]
    late = (pl.min_horizontal("end_ns", "ready_ns") - pl.col("start_ns")).clip(0)
    is_wait = pl.col("waiting") | (pl.col("action") == Kind.NORM.name)
    is_known = pl.col("ready_ns").is_not_null()
    return actions.join(ready, on=key, how="left", maintain_order="left").with_columns(
        pl.when(is_wait & is_known)
        .then(pl.min_horizontal(late, "own_ns"))
        .otherwise(0)
        .alias("late_ns")
    )


def _sent(actions: pl.DataFrame, grid: Grid) -> pl.DataFrame:
    """When the message of each receive was sent: the receiver's key and ``ready_ns``."""
    receiver = (pl.col("peer_rank") * grid.dp + pl.col("dp_rank")) * grid.tp + pl.col("tp_rank")
    sent = actions.filter(~pl.col("waiting")).join(
        _receivers(actions.schema, grid), on=["pp_rank", "chunk", "action"]
    )
    return sent.select(
        receiver.alias("rank"),
        "generation",
        "step",
        pl.col("receives").alias("action"),
        pl.col("peer_chunk").alias("chunk"),
        "micro_batch",
        pl.col("start_ns").alias("ready_ns"),
        pl.col("rank").alias("ready_rank"),
    ).unique(["rank", "generation", "step", "action", "chunk", "micro_batch"])


def _receivers(schema: pl.Schema, grid: Grid) -> pl.DataFrame:
    """Return the receiver of what each pipeline rank and chunk sends."""
    rows = []
    for sends, receives, forth in (
        (Kind.SEND_FORWARD, Kind.RECV_FORWARD, 1),
        (Kind.SEND_BACKWARD, Kind.RECV_BACKWARD, -1),
    ):
        for target in range(grid.pp * grid.vp):
            if 0 <= (stage := target - forth) < grid.pp * grid.vp:
                places = (*grid.stage_map.place(stage), *grid.stage_map.place(target))
                rows.append((*places, sends.name, receives.name))
    ranks, chunks = schema["pp_rank"], schema["chunk"]
    columns = {"pp_rank": ranks, "chunk": chunks, "peer_rank": ranks, "peer_chunk": chunks}
    named = {"action": schema["action"], "receives": schema["action"]}
    return pl.DataFrame(rows, schema={**columns, **named}, orient="row")


def _issued(actions: pl.DataFrame) -> pl.DataFrame:
    """When the last replica issued each collective of a bucket."""
    group = ["generation", "step", "action", "chunk", "micro_batch", "pp_rank", "tp_rank"]
    issues = actions.filter(pl.col("action").is_in(COLLECTIVES) & ~pl.col("waiting"))
    return _of_last(issues, group)


def _arrived(actions: pl.DataFrame) -> pl.DataFrame:
    """When the last rank of all came to the all-reduces that end a step."""
    return _of_last(
        actions.filter(pl.col("action") == Kind.NORM.name), ["generation", "step", "action"]
    )


def _of_last(actions: pl.DataFrame, group: list[str]) -> pl.DataFrame:
    last_ns = pl.col("start_ns").max().over(group).alias("ready_ns")
    last = pl.col("rank").sort_by("start_ns").last().over(group).alias("ready_rank")
    key = ["rank", "generation", "step", "action", "chunk", "micro_batch"]
    return actions.select(*key, last_ns, last).unique(key)
