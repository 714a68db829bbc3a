"""What a run reads: the samples of each rank and step, their order, how far through the corpus."""

from __future__ import annotations

import hashlib

import numpy as np
import polars as pl
from headway.common.errors import InputError
from headway.common.plan.schedule.actions import Kind
from headway.dataloader import DataClient, StreamSpec, stream_spec
from headway.trainer.config import RunConfig

BEFORE = 3
"""Steps read before the shown one, for "continued" to differ from "resumed"."""
ORDERS = {
    "read": pl.String,
    "replicas": pl.Int64,
    "first_samples": pl.String,
    "tokens": pl.Int64,
    "digest": pl.String,
    "is_same": pl.Boolean,
}
WAITS = ("rank", "num_steps", "p50_s", "p99_s", "highest_s", "share")


def run_stream(
    config: RunConfig,
    *,
    dp_rank: int = 0,
    dp: int | None = None,
    start: int = 0,
    batch_size: int | None = None,
) -> StreamSpec:
    """The training stream of one replica from global sample ``start`` on.

    ``dp`` replicas share steps of ``batch_size`` samples.
    """
    return stream_spec(
        config.data.path,
        seed=config.data.seed,
        seq_len=config.model.seq_len,
        micro_batch_size=config.train.micro_batch_size,
        global_batch_size=batch_size or config.train.global_batch_size,
        dp_rank=dp_rank,
        dp_size=config.parallel.dp if dp is None else dp,
        start_sample=start,
    )


def samples_of(config: RunConfig, *, rank: int, step: int) -> list[int]:
    """Global numbers of the samples that ``rank``'s replica reads in ``step``, in order.

    Micro-batch j of the global batch belongs to replica j % dp; see the data service's README.

    Raises:
        ConfigError: ``rank`` is not in the grid. InputError: ``step`` is below 0.
    """
    if step < 0:
        raise InputError(f"step {step} is below 0", remedy="steps are counted from 0")
    dp_rank = config.parallel.grid.coordinates(rank).dp
    size = config.train.micro_batch_size
    first, batch_size = _place_of(config, step)
    batches = range(dp_rank, batch_size // size, config.parallel.dp)
    return [first + j * size + row for j in batches for row in range(size)]


def _place_of(config: RunConfig, step: int) -> tuple[int, int]:
    """The first sample of ``step``, and how many it has."""
    first = config.batch_ramp.consumed(step)
    return first, config.batch_ramp.size(first)


def same_order(config: RunConfig, step: int) -> pl.DataFrame:
    """The global batch of ``step`` read in several ways, columns ``ORDERS``.

    As the run reads it, continued from some steps before; resumed at the step; and for other
    numbers of replicas. ``digest`` is over the tokens of the batch in the order of its samples.
    """
    num_micro = _place_of(config, step)[1] // config.train.micro_batch_size
    dp = config.parallel.dp
    before = min(BEFORE, step)
    ways = [(f"continued from step {step - before}" if before else "from the start", dp, before)]
    ways.append((f"resumed at step {step}", dp, 0))
    others = [n for n in (1, 2, 4, 8, num_micro) if n != dp and n <= num_micro]
    ways += [("on another grid", n, 0) for n in dict.fromkeys(others)]
    rows = []
    for name, replicas, skipped in ways:
        batch, firsts = _global_batch(config, step, replicas, skipped)
        digest = hashlib.sha256(batch.tobytes()).hexdigest()[:16]
        shown = ", ".join(map(str, firsts[:4])) + (", ..." if len(firsts) > 4 else "")
        rows.append((name, replicas, shown, batch.size, digest))
    same = [row[-1] == rows[0][-1] for row in rows]
    full = [(*row, is_same) for row, is_same in zip(rows, same, strict=True)]
    return pl.DataFrame(full, schema=ORDERS, orient="row")


def _global_batch(
    config: RunConfig, step: int, dp: int, before: int
) -> tuple[np.ndarray, list[int]]:
    """Tokens [global batch, seq_len] in the order of samples, each replica's first sample."""
    size = config.train.micro_batch_size
    _, batch_size = _place_of(config, step)
    start, _ = _place_of(config, step - before)
    found: dict[int, np.ndarray] = {}
    firsts = []
    earlier = config.batch_ramp.sizes(step)[step - before :]
    for dp_rank in range(dp):
        spec = run_stream(config, dp_rank=dp_rank, dp=dp, start=start, batch_size=batch_size)
        with DataClient(None, spec=spec) as client:
            for _ in range(sum(config.micro_batches_of(n, dp_rank) for n in earlier)):
                client.next()
            firsts.append(client.next_sample)
            for _ in range(spec.num_micro_batches):
                batch = client.next()
                found |= {batch.sample + row: batch.tokens[row] for row in range(size)}
    return np.stack([found[sample] for sample in sorted(found)]), firsts


def data_waits(actions: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """How long each rank took to get a step's micro-batches, columns ``WAITS``.

    ``share`` is of the rank's whole time. Ranks of stages between the first and the last read data
    only where the model has documents. ``actions`` as ``step_actions`` returns them, ``rows`` as
    ``ledger`` does.
    """
    per_step = (
        actions.filter(pl.col("action") == Kind.DATA.name)
        .group_by("rank", "generation", "step")
        .agg((pl.col("own_ns").sum() * 1e-9).alias("s"))
    )
    whole = rows.group_by("rank").agg(pl.col("total").sum().alias("whole_s"))
    seconds = pl.col("s")
    return (
        per_step.group_by("rank")
        .agg(
            pl.len().cast(pl.Int64).alias("num_steps"),
            seconds.quantile(0.5, "linear").alias("p50_s"),
            seconds.quantile(0.99, "linear").alias("p99_s"),
            seconds.max().alias("highest_s"),
            seconds.sum().alias("total_s"),
        )
        .join(whole, on="rank")
        .with_columns((pl.col("total_s") / pl.col("whole_s")).alias("share"))
        .sort("rank")
        .select(*WAITS)
    )
