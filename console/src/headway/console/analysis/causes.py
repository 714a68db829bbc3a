"""The whole time of all ranks by cause: what became model FLOPs, and where the rest went."""

from __future__ import annotations

import polars as pl
from headway.console.analysis.time_ledger import COLUMNS

SCHEMA = {"cause": pl.String, "share": pl.Float64, "per_rank_s": pl.Float64, "meaning": pl.String}
MFU = "model FLOPs at the peak rate (MFU)"
BELOW_PEAK = "forward and backward below the peak"
COMPUTE = "forward and backward (peak not known)"
BUBBLE = "pipeline bubble of the schedule"
UNEQUAL = "pipeline stages of unequal length"
BEYOND = "waiting beyond both"
NOT_RECORDED = "not recorded"
MEANINGS = {
    MFU: "model FLOPs done over what the peak rate allows in all this time",
    BELOW_PEAK: "small products, memory-bound work, tensor-parallel messages, shared cores",
    COMPUTE: "measure the peak on an idle machine, then it is divided by MFU",
    BUBBLE: "idle time over compute time as the order of the schedule makes it",
    UNEQUAL: "the same order with the stages' own median times idles that much more",
    BEYOND: "steps unlike the median, stragglers, replicas that come late",
    "optimizer": "the update of this rank's shard",
    "communication": "issued or waited for while both sides were there",
    "data": "taking the step's micro-batches",
    "snapshot": "copying the state into memory; checkpoints are written in the background",
    "warm_up": "allocations and caches of a new process",
    "evaluation": "validation losses and samples between steps",
    "recovery": "from the lost rank to the next step, and steps done again",
    "stopped": "from the last step of one start to the first of the next",
    "paused": "by command",
    NOT_RECORDED: "Python between records, clearing gradients, commands, clean-up",
}
"""What each cause of the table means."""


def model_flops_share(
    rows: pl.DataFrame, *, flops_per_step: float, peak_flops: float | None
) -> float | None:
    """MFU over the whole time of the ledger ``rows``, all losses included, 0..1.

    Args:
        flops_per_step: model FLOPs of one global batch.
        peak_flops: of all ranks together, FLOP/s; None where it is unknown.
    """
    total_s, num_kept = float(rows["total"].sum()), rows.filter("is_kept").height
    # both are sums over ranks; of a live run some may have completed a step more than others
    return num_kept * flops_per_step / (peak_flops * total_s) if peak_flops and total_s else None


def lost_time(
    rows: pl.DataFrame,
    *,
    mfu: float | None = None,
    bubble: float = 0.0,
    replayed: float | None = None,
) -> pl.DataFrame:
    """One row per cause, columns ``SCHEMA``; the shares of all ranks' time add up to 1.

    ``per_rank_s`` is the mean over ranks. A negative share of ``BELOW_PEAK`` means that the peak
    was measured too low.

    Args:
        rows: as ``ledger`` returns them.
        mfu: as ``model_flops_share`` returns it; None leaves compute undivided.
        bubble: idle over compute time of the schedule in theory; so much of the time that ranks
            waited for each other is its bubble, if they waited so long.
        replayed: the same with the stages' own times; what it is above ``bubble`` comes from
            unequal stages.
    """
    total, ranks = float(rows["total"].sum()), max(1, rows["rank"].n_unique())
    if total <= 0:
        return pl.DataFrame(schema=SCHEMA)
    parts = {name: float(rows[name].sum()) / total for name in COLUMNS}
    compute, waiting = parts.pop("compute"), parts.pop("waiting")
    shares = {COMPUTE: compute} if mfu is None else {MFU: mfu, BELOW_PEAK: compute - mfu}
    shares[BUBBLE] = min(waiting, bubble * compute)
    unequal = max(0.0, (replayed or 0.0) - bubble) * compute
    shares[UNEQUAL] = min(waiting - shares[BUBBLE], unequal)
    shares[BEYOND] = waiting - shares[BUBBLE] - shares[UNEQUAL]
    unknown = parts.pop("unrecorded") + parts.pop("between")
    shares |= parts | {NOT_RECORDED: unknown}
    found = [
        (COLUMNS.get(cause, cause), share, share * total / ranks, MEANINGS[cause])
        for cause, share in shares.items()
    ]
    return pl.DataFrame(found, schema=SCHEMA, orient="row")
