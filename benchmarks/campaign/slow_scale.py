"""How long it takes to read and judge the summaries of 50 steps of 10,000 ranks."""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from headway.common.plan.collectives import GroupKind
from headway.common.plan.grid import Grid
from headway.health.slowness.of_run import slow_steps

GRID = Grid(tp=8, pp=10, dp=125)
NUM_STEPS = 50
SLOW = 4321
"""The rank whose tensor-parallel group takes 1.2x, as one waits for another in it."""
LINES = (
    2 * GroupKind.DP, 2 * GroupKind.PP, 2 * GroupKind.EVERY_RANK, 2 * GroupKind.FORWARD,
    2 * GroupKind.FORWARD + 1, 2 * GroupKind.BACKWARD, 2 * GroupKind.BACKWARD + 1,
)  # fmt: skip


def measure() -> dict[str, object]:
    """Processor time, largest size of this process so far, and whether the rank was found."""
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        began = time.process_time()
        found = slow_steps(Path(folder), GRID, []).found
        seconds = time.process_time() - began
    named = [[subject.rank for subject in one.culprits] for one in found]
    return {
        "ranks": GRID.world_size,
        "steps": NUM_STEPS,
        "seconds": round(seconds, 2),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "found": [one.summary for one in found],
        "is_right": named == [list(GRID.group("tp", SLOW))],
    }


def _write(folder: Path) -> None:
    chance = np.random.default_rng(0)
    num_ranks = GRID.world_size
    step, rank = (one.ravel() for one in np.indices((NUM_STEPS, num_ranks)))
    jitter = np.repeat(chance.normal(1.0, 0.01, (NUM_STEPS, num_ranks // GRID.tp)), GRID.tp, 1)
    own = (100_000 * jitter.ravel()).astype(np.int64)
    own[(rank // GRID.tp == SLOW // GRID.tp) & (step >= NUM_STEPS // 2)] *= 12
    own[(rank // GRID.tp == SLOW // GRID.tp) & (step >= NUM_STEPS // 2)] //= 10
    zeros = np.zeros(len(own), np.int64)
    groups = [
        pl.struct(
            line=pl.lit(int(line), pl.Int64), number=pl.col("rank"), num=pl.lit(4, pl.Int64),
            wait_us=pl.col("wait_us"), nbytes=pl.lit(1 << 20, pl.Int64),
            first_us=pl.lit(1, pl.Int64), last_us=pl.lit(2, pl.Int64),
        ) for line in LINES
    ]  # fmt: skip
    frame = pl.DataFrame({
        "node": (rank // 8).astype(np.int32), "boot_id": ["b"] * len(own), "rank": rank,
        "generation": zeros, "step": step, "sequence": step, "start_ns": step * 10**9,
        "duration_us": own + 30_000, "own_us": own, "data_us": zeros + 1000, "snapshot_us": zeros,
        "collection_us": zeros, "norm_us": zeros + 2000, "optimizer_us": zeros + 3000,
        "wait_us": chance.integers(2000, 3000, len(own)),
    })  # fmt: skip
    frame.with_columns(groups=pl.concat_list(groups)).drop("wait_us").write_parquet(
        folder / "summary-00000000000000000001.parquet"
    )
