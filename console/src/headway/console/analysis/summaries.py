"""How each rank spent each step, and who was late in which group: the summaries of a run.

They are saved by the monitor for all nodes, so they need no records of the nodes themselves.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
from headway.common.errors import CorruptError
from headway.common.node.run_dir import RunDir
from headway.console.analysis.clocks import Clocks
from headway.console.folder.records import RunRecords

_GROUP = ("line", "number", "num", "wait_us", "nbytes", "first_us", "last_us")
_TIMES = ("duration_us", "own_us", "data_us", "snapshot_us", "collection_us", "norm_us",
          "optimizer_us")  # fmt: skip
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "node": pl.Int32,
    "boot_id": pl.String,
    "rank": pl.Int64,
    "generation": pl.Int64,
    "step": pl.Int64,
    "sequence": pl.Int64,
    "start_ns": pl.Int64,
    **dict.fromkeys(_TIMES, pl.Int64),
    "groups": pl.List(pl.Struct(dict.fromkeys(_GROUP, pl.Int64))),
    "num_passes": pl.Int64,
}


def load_summaries(run_dir: Path, *, where: pl.Expr | None = None) -> pl.DataFrame:
    """One row per rank and step, by rank and start; columns ``SCHEMA`` and ``uncertainty_ns``.

    ``start_ns`` is of the run's clock, off by ``uncertainty_ns`` either way: 0 where one machine
    carries the run, null where the clocks were not compared.

    Args:
        where: which rows, such as ``pl.col("step") > 9``. Files and groups of rows whose statistics
            show that they have none are not read.

    Raises:
        CorruptError: a file is unreadable.
    """
    run = RunDir(run_dir)
    parts = [_read(path, where) for path in sorted(run.summaries.glob("summary-*.parquet"))]
    rows = pl.concat(parts) if parts else pl.DataFrame(schema=SCHEMA)
    rows = rows.unique(["rank", "generation", "step", "sequence"], keep="first")
    return _on_run_clock(rows, Clocks(RunRecords(run_dir))).sort("rank", "start_ns")


def group_lateness(summaries: pl.DataFrame) -> pl.DataFrame:
    """How long after the median of its group each rank entered it, per step.

    Columns rank, generation, step, line, number, num, wait_us, nbytes, ``first_late_us`` and
    ``last_late_us`` (of the first and of the last collective, below 0 before the median), and
    ``uncertainty_us``: of the rank's clock against those of the group. Groups of which fewer than
    two ranks are known are left out, and messages, whose two ends have lines of their own.
    """
    key = ["generation", "step", "line", "number"]
    entered = (
        summaries.explode("groups")
        .drop_nulls("groups")
        .unnest("groups")
        .with_columns(pl.col("start_ns", "uncertainty_ns") // 1000)
    )
    first, last = (pl.col("start_ns") + pl.col(name) for name in ("first_us", "last_us"))
    return (
        entered.filter(pl.col("number") >= 0)
        .filter(pl.len().over(key) > 1)
        .with_columns(
            (first - first.median().over(key)).cast(pl.Int64).alias("first_late_us"),
            (last - last.median().over(key)).cast(pl.Int64).alias("last_late_us"),
            (pl.col("uncertainty_ns") + pl.col("uncertainty_ns").max().over(key)).alias(
                "uncertainty_us"
            ),
        )
        .select("rank", *key, "num", "wait_us", "nbytes", "first_late_us", "last_late_us",
                "uncertainty_us")
        .sort(*key, "rank")
    )  # fmt: skip


def _read(path: Path, where: pl.Expr | None) -> pl.DataFrame:
    rows = pl.scan_parquet(path, glob=False)
    try:
        if "num_passes" not in rows.collect_schema():  # of an older version
            rows = rows.with_columns(num_passes=pl.lit(0))
        return (rows if where is None else rows.filter(where)).select(
            pl.col(name).cast(kind) for name, kind in SCHEMA.items()
        ).collect()  # fmt: skip
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        first_line = str(error).partition("\n")[0]
        raise CorruptError(
            f"{path} has no summaries of steps: {first_line}", remedy="remove the file"
        ) from error


def _on_run_clock(rows: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    known = clocks.uncertainty_ns()
    parts = [
        part.with_columns(
            pl.Series(
                "start_ns", clocks.times(int(node), part["start_ns"].to_numpy(), str(boot_id))
            ),
            pl.lit(known.get(int(node)) if known else 0, pl.Int64).alias("uncertainty_ns"),
        )
        for (node, boot_id), part in rows.group_by("node", "boot_id")
    ]
    empty = rows.with_columns(pl.lit(0, pl.Int64).alias("uncertainty_ns"))
    return pl.concat(parts) if parts else empty
