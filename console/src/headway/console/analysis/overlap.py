"""How much of the communication is hidden behind compute."""

from __future__ import annotations

import polars as pl
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.actions import COLLECTIVES, MESSAGES, STEP_KEY

NAMES = {
    Kind.ALL_GATHER.name: "parameters (all-gather)",
    Kind.REDUCE_SCATTER.name: "gradients (reduce-scatter)",
    Kind.SEND_FORWARD.name: "activations (messages)",
    Kind.RECV_FORWARD.name: "activations (messages)",
    Kind.SEND_BACKWARD.name: "gradients of activations (messages)",
    Kind.RECV_BACKWARD.name: "gradients of activations (messages)",
}
SCHEMA = {
    "communication": pl.String,
    "num_per_step": pl.Float64,
    "mib_per_step": pl.Float64,
    "open_s": pl.Float64,
    "exposed_s": pl.Float64,
    "hidden": pl.Float64,
}


def communication(actions: pl.DataFrame) -> pl.DataFrame:
    """One row per kind of communication, columns ``SCHEMA``, means per rank and step.

    ``open_s``: from the moment that both sides had begun until the result was taken; an upper bound
    of the transfer's duration, since its arrival is not recorded. ``exposed_s``: the part of it in
    which the rank did nothing but issue it or wait. ``hidden``: 1 - exposed / open, an upper bound
    too. ``actions`` as ``step_actions`` returns them.
    """
    num_steps = actions.select(STEP_KEY).n_unique()
    actions = actions.filter("has_peers")
    if not num_steps:
        return pl.DataFrame(schema=SCHEMA)
    transfers = pl.concat([_collectives(actions), _messages(actions)])
    totals = transfers.group_by("communication").agg(
        (pl.col("num").sum() / num_steps).alias("num_per_step"),
        (pl.col("nbytes").sum() / num_steps / 2**20).alias("mib_per_step"),
        (pl.col("open_ns").sum() / num_steps * 1e-9).alias("open_s"),
        (pl.col("exposed_ns").sum() / num_steps * 1e-9).alias("exposed_s"),
    )
    hidden = (1.0 - pl.col("exposed_s") / pl.col("open_s")).clip(0.0, 1.0)
    return (
        totals.with_columns(hidden.alias("hidden"))
        .select(*SCHEMA)
        .sort("exposed_s", descending=True)
    )


def _collectives(actions: pl.DataFrame) -> pl.DataFrame:
    """Issue and wait of each collective joined."""
    key = [*STEP_KEY, "action", "chunk", "micro_batch"]  # the last is the bucket here
    mine = actions.filter(pl.col("action").is_in(COLLECTIVES))
    waits = mine.filter("waiting").select(
        *key, pl.col("end_ns").alias("taken_ns"), (pl.col("own_ns") - pl.col("late_ns")).alias("w")
    )
    issue = pl.col("own_ns")
    since = pl.col("taken_ns") - pl.col("ready_ns")  # the last replica may be another one
    return (
        mine.filter(~pl.col("waiting"))
        .join(waits, on=key)
        .select(
            _name(),
            pl.lit(1).alias("num"),
            "nbytes",
            (since + pl.when(pl.col("start_ns") < pl.col("ready_ns")).then(issue).otherwise(0))
            .clip(0)
            .alias("open_ns"),
            (issue + pl.col("w")).alias("exposed_ns"),
        )
    )


def _messages(actions: pl.DataFrame) -> pl.DataFrame:
    """Receives, open from their sender's issue on; issuing and waiting for a send is exposed."""
    exposed = pl.col("own_ns") - pl.col("late_ns")
    since = pl.col("end_ns") - pl.col("ready_ns").fill_null(pl.col("start_ns"))
    is_receive = pl.col("action").str.starts_with("RECV")
    return actions.filter(pl.col("action").is_in(MESSAGES)).select(
        _name(),
        pl.when(is_receive).then(1).otherwise(0).alias("num"),
        pl.when(is_receive).then("nbytes").otherwise(0).alias("nbytes"),
        pl.when(is_receive).then(since.clip(0)).otherwise("own_ns").alias("open_ns"),
        exposed.alias("exposed_ns"),
    )


def _name() -> pl.Expr:
    return pl.col("action").replace_strict(NAMES).alias("communication")
