"""What each rank did, and when: the flight records of all ranks as one frame."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from headway.common.errors import CorruptError
from headway.common.log import get_logger
from headway.common.node.event_files import earlier_files, event_files
from headway.common.node.flight import FlightReader
from headway.common.node.flight_record import BROKEN, RECORD, WAITING, device_times
from headway.common.node.run_dir import NodePaths, RunDir, shm_root
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.clocks import Clocks
from headway.console.analysis.windows import WHOLE, Span, read_window
from headway.console.folder.records import RunRecords

_log = get_logger("events")
_FIELDS = RECORD.names or ()
SCHEMA = {
    "node": pl.Int64,
    "rank": pl.Int64,
    "action": pl.String,
    "waiting": pl.Boolean,
    "broken": pl.Boolean,
    **dict.fromkeys(_FIELDS, pl.Int64),
}


def load_events(
    run_dir: Path,
    *,
    since_s: float | None = None,
    until_s: float | None = None,
    where: pl.Expr | None = None,
) -> pl.DataFrame:
    """The flight records of a run as one frame, each record once.

    They come from saved windows, and from the live rings of this machine. Windows that have nothing
    of the time and the records asked for are not read.

    Columns ``SCHEMA``: ``action`` is the kind's name, ``waiting`` and ``broken`` its flags; times
    in ns of the run's clock, those of the device where ``device`` is not 0; an action
    still open has ``end_ns`` null. Sorted by rank and start.

    Args:
        since_s: actions that ended before it are left out; in seconds of the run's clock.
        until_s: actions that began after it are left out.
        where: which records, such as ``pl.col("step") > 9``; by columns of a record but its times.

    Raises:
        CorruptError: a saved window is unreadable.
    """
    span = Span(_ns(since_s), _ns(until_s), where)
    parts = [frame(node, rank, rows) for node, rank, rows in windows(RunDir(run_dir), span)]
    if not parts:
        return pl.DataFrame(schema=SCHEMA)
    # A record may lie in a window and still be in the ring, there open, here closed: the closed one
    # counts, and the one that has the device's times.
    identity = ["node", "rank", "sequence", "launched_ns"]
    return (
        span.during(pl.concat(parts))
        .sort("device", "end_ns", descending=[True, False], nulls_last=True)
        .unique(identity, keep="first")
        .sort("rank", "start_ns", "sequence")
        .select(*SCHEMA)
    )


def in_steps(first: int, last: int | None) -> pl.Expr:
    """Records of these steps, both included; ``last`` None is to the end."""
    since = pl.col("step") >= first
    return since if last is None else since & (pl.col("step") <= last)


def _ns(at_s: float | None) -> int | None:
    return None if at_s is None else round(at_s * 1e9)


def windows(
    run: RunDir, span: Span = WHOLE, *, skips_damaged: bool = False
) -> Iterator[tuple[int, int, npt.NDArray[Any]]]:
    """Node, rank and records of each saved window that may have some of ``span``, and of the rings.

    The rings are those on this machine; times are those of the run's clock.

    Args:
        skips_damaged: a damaged window is passed over with a warning, as in a live view.

    Raises:
        CorruptError: a saved window is unreadable.
    """
    clocks = Clocks(RunRecords(run.path))
    if (earlier := earlier_files(run.events)) and not skips_damaged:
        raise CorruptError(
            f"{earlier[0]} holds records of another format, as do {len(earlier) - 1} more files",
            remedy="remove them, or read them with the version that wrote them",
        )
    for file in event_files(run.events):
        try:
            found = read_window(file, clocks, span)
        except FileNotFoundError:
            continue  # removed by its node, which keeps to a limit
        except CorruptError as error:
            if not skips_damaged:
                raise
            _log.warning("a window of flight records is left out", reason=str(error))
            continue
        if found is not None:
            yield from ((file.node, rank, rows) for rank, rows in _by_rank(found))
    for node, path in live_rings(run.run_id):
        try:
            reader = FlightReader(path)
        except (CorruptError, FileNotFoundError):
            continue  # just being made, or removed with its run
        yield node, reader.header.rank, clocks.shift(node, reader.snapshot())
        reader.close()


def _by_rank(rows: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Rank and records of each run of rows of one rank."""
    borders = [0, *(np.flatnonzero(np.diff(rows["rank"])) + 1), len(rows)]
    for begin, end in pairwise(borders):
        if end > begin:
            records = np.empty(end - begin, RECORD)
            for name in _FIELDS:
                records[name] = rows[name][begin:end]
            yield int(rows["rank"][begin]), records


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
