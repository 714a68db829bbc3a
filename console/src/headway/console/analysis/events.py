"""What each rank did, and when: the flight records of all ranks as one frame."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from headway.common.errors import CorruptError
from headway.common.node.flight import FlightReader
from headway.common.node.flight_record import BROKEN, RECORD, WAITING, device_times
from headway.common.node.run_dir import NodePaths, RunDir, shm_root
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.clocks import Clocks
from headway.console.folder.records import RunRecords

_WINDOW = re.compile(r"n(\d+)-rank(\d+)-.*\.npy")
_FIELDS = RECORD.names or ()
SCHEMA = {
    "node": pl.Int64,
    "rank": pl.Int64,
    "action": pl.String,
    "waiting": pl.Boolean,
    "broken": pl.Boolean,
    **dict.fromkeys(_FIELDS, pl.Int64),
}


def load_events(run_dir: Path) -> pl.DataFrame:
    """All flight records of a run as one frame, each record once.

    They come from saved windows, and from the live rings of this machine.

    Columns ``SCHEMA``: ``action`` is the kind's name, ``waiting`` and ``broken`` its flags; times
    in ns of the run's clock, those of the device where ``device`` is not 0; an action
    still open has ``end_ns`` null. Sorted by rank and start.

    Raises:
        CorruptError: a saved window is unreadable.
    """
    parts = [frame(node, rank, records) for node, rank, records in windows(RunDir(run_dir))]
    if not parts:
        return pl.DataFrame(schema=SCHEMA)
    # A record may lie in a window and still be in the ring, there open, here closed: the closed one
    # counts, and the one that has the device's times.
    identity = ["node", "rank", "sequence", "launched_ns"]
    return (
        pl.concat(parts)
        .sort("device", "end_ns", descending=[True, False], nulls_last=True)
        .unique(identity, keep="first")
        .sort("rank", "start_ns", "sequence")
        .select(*SCHEMA)
    )


def windows(run: RunDir) -> Iterator[tuple[int, int, npt.NDArray[Any]]]:
    """Node, rank and records of each saved window and of each live ring.

    The rings are those on this machine; times are those of the run's clock.

    Raises:
        CorruptError: a saved window is unreadable.
    """
    clocks = Clocks(RunRecords(run.path))
    for path in sorted(run.events.glob("*.npy")):
        found = _WINDOW.fullmatch(path.name)
        if found is None:
            continue
        try:
            records = np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise CorruptError(
                f"{path} is no window of records", remedy="remove the file"
            ) from error
        if records.dtype != RECORD:
            raise CorruptError(f"{path} holds records of another format", remedy="remove the file")
        node = int(found[1])
        yield node, int(found[2]), clocks.shift(node, records, path.stat().st_mtime)
    for node, path in live_rings(run.run_id):
        try:
            reader = FlightReader(path)
        except (CorruptError, FileNotFoundError):
            continue  # just being made, or removed with its run
        yield node, reader.header.rank, clocks.shift(node, reader.snapshot())
        reader.close()


def live_rings(run_id: str) -> Iterator[tuple[int, Path]]:
    """Node and file of each flight ring of a run on this machine."""
    for folder in sorted((shm_root() / run_id).glob("n*")):
        if folder.name[1:].isdigit():
            node = int(folder.name[1:])
            for path in NodePaths(run_id, node).segments("flight"):
                yield node, path


def frame(node: int, rank: int, records: npt.NDArray[Any]) -> pl.DataFrame:
    """Columns ``SCHEMA``, and ``launched_ns``, the start without the device's times."""
    shown = device_times(records)
    columns = {name: np.ascontiguousarray(shown[name]).astype(np.int64) for name in _FIELDS}
    columns["launched_ns"] = np.ascontiguousarray(records["start_ns"]).astype(np.int64)
    names = {kind.value: kind.name for kind in Kind}
    action = pl.col("kind").replace_strict(
        names, default=pl.format("KIND_{}", "kind"), return_dtype=pl.String
    )
    return (
        pl.DataFrame(columns)
        .with_columns(
            pl.lit(node, pl.Int64).alias("node"),
            pl.lit(rank, pl.Int64).alias("rank"),
            action.alias("action"),
            (pl.col("flags") & WAITING > 0).alias("waiting"),
            (pl.col("flags") & BROKEN > 0).alias("broken"),
            pl.when(pl.col("end_ns") > 0).then("end_ns").alias("end_ns"),
        )
        .select(*SCHEMA, "launched_ns")
    )


def completed_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Optimizer steps that a rank brought to their end: rank, generation, step, start_ns, end_ns.

    A STEP record also ends when its step is broken off; it is marked then.
    """
    ended = (
        (pl.col("action") == Kind.STEP.name) & pl.col("end_ns").is_not_null() & ~pl.col("broken")
    )
    return (
        events.filter(ended)
        .select("rank", "generation", "step", "start_ns", "end_ns")
        .unique(["rank", "generation", "step"], keep="last")
        .sort("rank", "generation", "step")
    )


def redone_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Completed steps that were done again, by the generation that did so.

    The columns are generation, num_steps, ranks.

    ``num_steps`` counts different steps; ``ranks`` how many ranks did at least one again.
    """
    done = completed_steps(events)
    first = done.group_by("rank", "step").agg(pl.col("generation").min().alias("first_generation"))
    again = done.join(first, on=["rank", "step"]).filter(
        pl.col("generation") > pl.col("first_generation")
    )
    return (
        again.group_by("generation")
        .agg(pl.col("step").n_unique().alias("num_steps"), pl.col("rank").n_unique().alias("ranks"))
        .sort("generation")
    )
