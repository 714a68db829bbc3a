"""Reads traces of steps in the form of StragglerAnalysis (ByteDance), one Parquet file per job.

One row per rank and operation: ``dp_rank, stage, rank, step, optype, start_ts, duration, seq_id,
mc``; times in seconds, by one clock for all ranks. Of tensor parallel ranks only one is recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from headway.common.errors import InputError
from headway.console.analysis.replay import Operation, Step

COLUMNS = frozenset(
    ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc")
)
_TO_NEXT = {"forward-send": 0, "forward-recv": -1, "backward-send": 0, "backward-recv": 1}
"""Kinds of messages, and how far from the rank's stage their sender is."""
_OF_STAGE = ("params-all-gather", "grads-reduce-scatter")
_OF_PIPELINE = ("embedding-grads-all-reduce",)
_OF_ALL = ("optimizer-clip-main-grad",)


@dataclass(frozen=True, slots=True)
class _Row:
    kind: str
    rank: int
    stage: int
    start_s: float
    end_s: float
    meeting: Hashable


def read_steps(path: Path) -> dict[int, Step]:
    """The steps of a trace.

    Raises:
        InputError: it is not such a trace, or cannot be read.
    """
    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path} cannot be read: {error}", remedy="copy it again") from error
    if lacking := COLUMNS - set(frame.columns):
        raise InputError(
            f"{path} is not a trace of steps: it lacks {', '.join(sorted(lacking))}",
            remedy="use one of StragglerAnalysis",
        )
    times = frame.select(pl.col("start_ts", "duration").cast(pl.Float64, strict=False))
    bad = times.filter(~pl.all_horizontal(pl.all().is_finite().fill_null(False) & (pl.all() >= 0)))
    if bad.height or not frame.height:
        raise InputError(
            f"{path} has {bad.height or 'no'} rows {'without a time' if bad.height else 'at all'}",
            remedy="leave out what was not measured",
        )
    ordered = frame.with_columns(pl.col("optype").cast(pl.String)).sort(
        "step", "rank", "start_ts", maintain_order=True
    )
    steps: dict[int, list[_Row]] = defaultdict(list)
    for row in ordered.iter_rows(named=True):
        end_s = row["start_ts"] + row["duration"]
        steps[row["step"]].append(
            _Row(row["optype"], row["rank"], row["stage"], row["start_ts"], end_s, _meeting(row))
        )
    return {number: _step(rows) for number, rows in steps.items()}


def _meeting(row: dict[str, Any]) -> Hashable:
    kind, number = row["optype"], (row["seq_id"], row["mc"])
    if kind in _TO_NEXT:
        sender = row["stage"] + _TO_NEXT[kind]
        return kind.split("-")[0], row["dp_rank"], sender, *number
    if kind in _OF_STAGE:
        return kind, row["stage"], *number
    if kind in _OF_PIPELINE:
        return kind, row["dp_rank"], *number
    return (kind, *number) if kind in _OF_ALL else None


def _step(rows: list[_Row]) -> Step:
    ends: dict[Hashable, list[_Row]] = defaultdict(list)
    for row in rows:
        if row.meeting is not None:
            ends[row.meeting].append(row)
    transfers = {meeting: _transfer_s(members) for meeting, members in ends.items()}
    order: dict[int, list[list[Operation]]] = defaultdict(list)
    for rank, together in _together(rows):
        order[rank].append(
            [
                Operation(
                    one.kind,
                    one.rank,
                    one.stage,
                    one.end_s - one.start_s if one.meeting is None else transfers[one.meeting],
                    one.meeting,
                )
                for one in together
            ]
        )
    return order


def _transfer_s(members: list[_Row]) -> float:
    """From the arrival of the last member on."""
    return max(0.0, min(one.end_s for one in members) - max(one.start_s for one in members))


def _together(rows: list[_Row]) -> Iterator[tuple[int, list[_Row]]]:
    """Messages that a rank began at the same time, as one."""
    batch: list[_Row] = []
    for row in rows:
        is_same = batch and (batch[0].rank, batch[0].start_s) == (row.rank, row.start_s)
        if batch and not (is_same and row.meeting is not None and batch[0].meeting is not None):
            yield batch[0].rank, batch
            batch = []
        batch.append(row)
    if batch:
        yield batch[0].rank, batch
