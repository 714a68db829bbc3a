"""A run as a trace that ui.perfetto.dev opens: all ranks in one file, on one clock.

One process per rank, one thread per kind of work; actions that overlap in a thread (messages under way) move
to further lanes of it. The driver is a process too: its recoveries as slices, its decisions as instants.
Names ending in ``.json`` or ``.json.gz`` are written as Chrome JSON, all others as Perfetto's own protobuf.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from headway.common.errors import InputError
from headway.common.plan.schedule.actions import COMPUTE, Kind
from headway.console.analysis.episodes import load_journal
from headway.console.analysis.events import load_events
from headway.console.run import Run

GROUPS = ("steps", "compute", "sends", "receives", "collectives", "data", "state", "other")
DRIVER = 1_000_000
"""Process number of the driver in a trace; ranks have their own."""
STEPS = re.compile(r"(\d*):(\d*)")


@dataclass(frozen=True)
class Track:
    """A thread of a trace."""

    process: int
    process_name: str
    thread: int
    thread_name: str


@dataclass(frozen=True)
class Slice:
    """Something with a beginning and, unless it is an instant, an end; ns of the host's monotonic clock."""

    track: Track
    name: str
    start_ns: int
    end_ns: int | None
    args: dict[str, Any] = field(default_factory=dict)


def write_trace(run: Run, out: Path, *, steps: tuple[int, int | None] = (0, None), newest: int | None = None) -> int:
    """Write the trace of ``run``; returns the number of slices.

    Args:
        steps: first and last step shown; None means to the end.
        newest: only this many steps at the end and before each recovery.

    Raises:
        InputError: there is nothing to show, or ``out`` cannot be written.
    """
    events = load_events(run.path)
    chosen = events.filter(pl.col("step") >= steps[0])
    if steps[1] is not None:
        chosen = chosen.filter(pl.col("step") <= steps[1])
    if newest is not None:
        last = pl.col("step").max().over("generation")
        chosen = chosen.filter((pl.col("step") > last - newest) | (pl.col("action") == Kind.STEP.name))
    if chosen.is_empty():
        raise InputError(f"run {run.name} has no records of these steps", remedy="see `headway status`")
    whole = steps == (0, None)
    slices = [*rank_slices(chosen), *(journal_slices(load_journal(run)) if whole else ())]
    try:
        out.write_bytes(_encoded(slices, out.name))
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}", remedy="choose another -o") from error
    return len(slices)


def parse_steps(text: str) -> tuple[int, int | None]:
    """``10:20``, ``10:`` or ``:20``. Raises InputError."""
    if not text:
        return 0, None
    found = STEPS.fullmatch(text)
    if found is None:
        raise InputError(f"--steps {text!r} is no range", remedy="write FIRST:LAST, e.g. 10:20")
    first, last = int(found[1] or 0), int(found[2]) if found[2] else None
    if last is not None and last < first:
        raise InputError(f"--steps {text!r} is an inverted range", remedy=f"write {last}:{first}")
    return first, last


def rank_slices(events: pl.DataFrame) -> Iterator[Slice]:
    """One slice per flight record. An action still open lasts to the newest moment of all records."""
    now = int(events.select(pl.max_horizontal(pl.col("start_ns").max(), pl.col("end_ns").max())).item() or 0)
    lanes: dict[tuple[int, str], list[int]] = {}
    for row in events.sort("start_ns", "end_ns", descending=[False, True]).iter_rows(named=True):
        group = _group(row["action"])
        end_ns = row["end_ns"] if row["end_ns"] is not None else now
        ends = lanes.setdefault((row["rank"], group), [])
        lane = next((i for i, end in enumerate(ends) if end <= row["start_ns"]), len(ends))
        ends[lane : lane + 1] = [end_ns]
        yield Slice(_track(row["rank"], group, lane), _name(row), row["start_ns"], end_ns, _args(row))


def journal_slices(journal: pl.DataFrame) -> Iterator[Slice]:
    """The driver's process: an instant per event, a slice from each fence to the stepping that ends it."""
    events, spans = (Track(DRIVER, "driver", n, name) for n, name in enumerate(("events", "recoveries")))
    fence_ns, reason = None, ""
    for row in journal.iter_rows(named=True):
        at_ns, fields = int(row["monotonic_s"] * 1e9), json.loads(row["fields"])
        yield Slice(events, row["name"], at_ns, None, fields)
        if row["name"] == "fence" and fence_ns is None:
            fence_ns, reason = at_ns, str(fields.get("reason", ""))
        elif row["name"] == "stepping" and fence_ns is not None:
            yield Slice(spans, f"recovery: {reason}", fence_ns, at_ns, fields)
            fence_ns = None


def _group(action: str) -> str:
    if action in {kind.name for kind in COMPUTE} | {Kind.OPTIMIZER.name}:
        return "compute"
    for word, group in (("SEND", "sends"), ("RECV", "receives"), ("STEP", "steps"), ("DATA", "data")):
        if action.startswith(word):
            return group
    if action in (Kind.ALL_GATHER.name, Kind.REDUCE_SCATTER.name, Kind.NORM.name):
        return "collectives"
    return "state" if action in (Kind.SNAPSHOT.name, Kind.RESTORE.name, Kind.JOIN.name, Kind.EVAL.name) else "other"


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
    return {key: row[key] for key in shown if row[key] >= 0} | ({} if row["end_ns"] is not None else {"open": 1})


# ---- the two formats --------------------------------------------------------------------------
def _encoded(slices: list[Slice], name: str) -> bytes:
    if name.endswith((".json", ".json.gz")):
        text = json.dumps({"traceEvents": list(chrome_events(slices)), "displayTimeUnit": "ms"})
        return gzip.compress(text.encode(), 6, mtime=0) if name.endswith(".gz") else text.encode()
    from headway.console.trace_proto import encode

    return encode(slices)


def chrome_events(slices: list[Slice]) -> Iterator[dict[str, Any]]:
    """Chrome's JSON trace events; times in microseconds from the first slice on."""
    origin = min((s.start_ns for s in slices), default=0)
    for track in sorted({s.track for s in slices}, key=lambda t: (t.process, t.thread)):
        where = {"ph": "M", "pid": track.process, "tid": track.thread}
        yield {**where, "name": "process_name", "args": {"name": track.process_name}}
        yield {**where, "name": "process_sort_index", "args": {"sort_index": track.process}}
        yield {**where, "name": "thread_name", "args": {"name": track.thread_name}}
        yield {**where, "name": "thread_sort_index", "args": {"sort_index": track.thread}}
    for s in slices:
        where = {"pid": s.track.process, "tid": s.track.thread}
        event = {**where, "name": s.name, "ts": (s.start_ns - origin) / 1e3, "args": s.args}
        if s.end_ns is None:
            yield {**event, "ph": "i", "s": "g"}
        else:
            yield {**event, "ph": "X", "dur": (s.end_ns - s.start_ns) / 1e3}
