"""How long pipeline ranks idle: measured, and what their schedule costs in theory."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
from headway.common.plan.schedule.actions import Action, Schedule
from headway.common.plan.schedule.generate import generate
from headway.common.plan.schedule.timeline import Span, unit_timeline
from headway.console.analysis.actions import is_compute
from headway.trainer.config import RunConfig

SOURCES = {
    "gpipe": "(p-1)/m: GPipe, arXiv 1811.06965",
    "1f1b": "(p-1)/m: Megatron-LM, arXiv 2104.04473, section 2.2.1",
    "interleaved": "(p-1)/(m v): Megatron-LM, arXiv 2104.04473, section 2.2.2",
    "zb-h1": "ZB-H1, arXiv 2401.10241, section 2.1, its order in unit time",
    "zb-v": "ZB-V, arXiv 2401.10241, section 6, its order in unit time",
}
"""Where the theoretical bubble of each schedule comes from; p stages, m micro-batches, v chunks."""
SCHEMA = {"case": pl.String, "bubble": pl.Float64, "source": pl.String}


def schedule_of(config: RunConfig) -> Schedule:
    """What the pipeline ranks of a run compute in one step."""
    parallel = config.parallel
    return generate(
        parallel.schedule,
        pp=parallel.pp,
        vp=parallel.num_chunks,
        num_micro_batches=config.num_micro_batches,
    )


def theoretical_bubble(
    schedule: Schedule, cost: Callable[[int, Action], float] | None = None
) -> float:
    """Idle time over compute time of all pipeline ranks, if messages take no time.

    With the default cost (a backward is two forwards, stages are equal) it is the literature's
    figure, see ``SOURCES``.
    """
    spans = unit_timeline(schedule) if cost is None else unit_timeline(schedule, cost)
    return _idle_over_busy(spans, schedule.pp)


def measured_bubble(actions: pl.DataFrame) -> pl.DataFrame:
    """One row per step and pipeline: ``bubble``, idle time over compute time of its ranks.

    Counted from the first computation of any of its ranks to the last, so it contains waits for
    messages, unequal stages and stalls, but no gradient reduction and no optimizer. ``actions`` as
    ``step_actions`` returns them.
    """
    own = pl.col("own_ns").sum()
    span = pl.col("end_ns").max() - pl.col("start_ns").min()
    return (
        actions.filter(is_compute())
        .group_by("generation", "step", "dp_rank", "tp_rank")
        .agg((pl.col("rank").n_unique() * span / own - 1.0).alias("bubble"))
        .sort("generation", "step", "dp_rank", "tp_rank")
    )


def bubbles(actions: pl.DataFrame, schedule: Schedule) -> pl.DataFrame:
    """Theory, theory with the stages' own times, and what was measured; columns ``SCHEMA``.

    The second is missing where some computation of the schedule was not recorded. ``bubble`` is
    idle over compute time; the difference between the first two rows is the cost of
    unequal stages, between the last two that of messages and stalls.
    """
    measured = measured_bubble(actions)["bubble"].median()
    costs = _median_costs(actions)
    needed = {_key(rank, action) for rank, order in enumerate(schedule.ranks) for action in order}
    replayed = None
    if needed <= costs.keys():
        replayed = theoretical_bubble(schedule, lambda rank, action: costs[_key(rank, action)])
    rows = [
        (
            f"{schedule.name}, equal stages, messages free",
            theoretical_bubble(schedule),
            SOURCES.get(schedule.name, "its order in unit time"),
        ),
        (
            "the same order with this run's median times",
            replayed,
            "forward and backward of each stage, messages free",
        ),
        ("measured", measured, "median over steps and pipelines"),
    ]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _idle_over_busy(spans: list[Span], num_ranks: int) -> float:
    length = max(span.end for span in spans) - min(span.start for span in spans)
    return num_ranks * length / sum(span.end - span.start for span in spans) - 1.0


def _key(rank: int, action: Action) -> tuple[int, int, str]:
    return rank, action.chunk, action.kind.name


def _median_costs(actions: pl.DataFrame) -> dict[tuple[int, int, str], float]:
    medians = (
        actions.filter(is_compute())
        .group_by("pp_rank", "chunk", "action")
        .agg(pl.col("own_ns").cast(pl.Float64).median())
    )
    return {(rank, chunk, kind): ns for rank, chunk, kind, ns in medians.iter_rows()}
