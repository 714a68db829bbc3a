"""What a trace shows of a run: flight records and the driver's journal as slices on tracks.

One process per rank, one thread per kind of work; actions that overlap in a thread (messages in
flight) move to further lanes of it. The driver is a process too: its recoveries are slices, its
decisions are instants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from headway.common.plan.schedule.actions import COMPUTE, Kind
from headway.controller.client import JournalEvent

GROUPS = ("steps", "compute", "sends", "receives", "collectives", "data", "state", "other")
PREFIXES = {"SEND": "sends", "RECV": "receives", "STEP": "steps", "DATA": "data"}
COLLECTIVES = {Kind.ALL_GATHER.name, Kind.REDUCE_SCATTER.name, Kind.NORM.name}
STATE = {Kind.SNAPSHOT.name, Kind.RESTORE.name, Kind.JOIN.name, Kind.EVAL.name, Kind.SAMPLE.name}
DRIVER = 1_000_000
"""Process number of the driver in a trace; a rank's number is the rank."""


@dataclass(frozen=True)
class Track:
    """A thread of a trace."""

    process: int
    process_name: str
    thread: int
    thread_name: str


@dataclass(frozen=True)
class Slice:
    """A named span, or an instant if it has no end; ns of the run's clock."""

    track: Track
    name: str
    start_ns: int
    end_ns: int | None
    args: dict[str, Any] = field(default_factory=dict)


def rank_slices(events: pl.DataFrame) -> Iterator[Slice]:
    """One slice per flight record; an open action lasts to the newest moment of all records."""
    newest = pl.max_horizontal(pl.col("start_ns").max(), pl.col("end_ns").max())
    now = int(events.select(newest).item() or 0)
    lanes: dict[tuple[int, str], list[int]] = {}
    for row in events.sort("start_ns", "end_ns", descending=[False, True]).iter_rows(named=True):
        group = _group(row["action"])
        end_ns = row["end_ns"] if row["end_ns"] is not None else now
        ends = lanes.setdefault((row["rank"], group), [])
        lane = next((i for i, end in enumerate(ends) if end <= row["start_ns"]), len(ends))
        ends[lane : lane + 1] = [end_ns]
        track = _track(row["rank"], group, lane)
        yield Slice(track, _name(row), row["start_ns"], end_ns, _args(row))


def journal_slices(journal: Iterable[JournalEvent]) -> Iterator[Slice]:
    """The driver's process: an instant per event, a slice per recovery (from fence to stepping)."""
    events, spans = Track(DRIVER, "driver", 0, "events"), Track(DRIVER, "driver", 1, "recoveries")
    fence_ns, reason = None, ""
    for event in journal:
        at_ns = int(event.monotonic_s * 1e9)
        yield Slice(events, event.name, at_ns, None, event.fields)
        if event.name == "fence" and fence_ns is None:
            fence_ns, reason = at_ns, str(event.fields.get("reason", ""))
        elif event.name == "stepping" and fence_ns is not None:
            yield Slice(spans, f"recovery: {reason}", fence_ns, at_ns, event.fields)
            fence_ns = None


def clock_slices(uncertainty_ns: Mapping[int, int | None], at_ns: int) -> Iterator[Slice]:
    """The driver's process: an instant per node, which says how well its clock is known.

    Args:
        uncertainty_ns: as ``Clocks.uncertainty_ns``.
        at_ns: where the trace begins.
    """
    track = Track(DRIVER, "driver", 2, "clocks")
    for node, one in uncertainty_ns.items():
        known = "unknown" if one is None else f"known to {one / 1e6:.3f} ms"
        yield Slice(track, f"clock of node {node} {known}", at_ns, None, {"node": node})


def _group(action: str) -> str:
    if action in {kind.name for kind in COMPUTE} | {Kind.OPTIMIZER.name}:
        return "compute"
    for word, group in PREFIXES.items():
        if action.startswith(word):
            return group
    if action in COLLECTIVES:
        return "collectives"
    return "state" if action in STATE else "other"


def _track(rank: int, group: str, lane: int) -> Track:
    name = group if lane == 0 else f"{group} {lane + 1}"
    return Track(rank, f"rank {rank}", GROUPS.index(group) * 100 + lane, name)


def _name(row: dict[str, Any]) -> str:
    name = str(row["action"])
    if name == Kind.STEP.name:
        return f"step {row['step']}"
    if row["micro_batch"] >= 0:
        name += f" {row['micro_batch']}"
    return f"{name} (wait)" if row["waiting"] else name


def _args(row: dict[str, Any]) -> dict[str, Any]:
    shown = ("step", "generation", "micro_batch", "chunk", "peer", "nbytes", "node")
    args = {key: row[key] for key in shown if row[key] >= 0}
    return args if row["end_ns"] is not None else args | {"open": 1}
