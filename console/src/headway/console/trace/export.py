"""A run as a trace that ui.perfetto.dev opens: all ranks in one file, on the run's clock.

Names ending in ``.json`` or ``.json.gz`` are written as Chrome JSON, all others as Perfetto's own
protobuf.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
from headway.common.errors import InputError
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.clocks import Clocks
from headway.console.analysis.events import in_steps, load_events
from headway.console.folder.records import RunRecords
from headway.console.trace.slices import Slice, clock_slices, journal_slices, rank_slices

IS_STEP = pl.col("kind") == Kind.STEP
STEPS = re.compile(r"(\d*):(\d*)")


def write_trace(
    run: RunRecords,
    out: Path,
    *,
    steps: tuple[int, int | None] = (0, None),
    newest: int | None = None,
) -> int:
    """Write the trace of ``run``; returns the number of slices.

    Args:
        steps: first and last step shown; None means to the end.
        newest: only this many steps at the end and before each recovery.

    Raises:
        InputError: there is nothing to show, or ``out`` cannot be written.
    """
    where = in_steps(*steps)
    if newest is not None:
        where &= _newest_steps(load_events(run.path, where=where & IS_STEP), newest) | IS_STEP
    chosen = load_events(run.path, where=where)
    if chosen.is_empty():
        raise InputError(
            f"run {run.name} has no records of these steps",
            remedy="see `headway status`",
        )
    whole = steps == (0, None)
    slices = [*rank_slices(chosen), *(journal_slices(run.records.events()) if whole else ())]
    begin_ns = min(one.start_ns for one in slices)
    slices += clock_slices(Clocks(run).uncertainty_ns(), begin_ns)
    try:
        out.touch(mode=0o600)  # a new one; an old one keeps its rights
        out.write_bytes(_encoded(slices, out.name))
    except OSError as error:
        raise InputError(
            f"cannot write {out}: {error.strerror}",
            remedy="choose another -o",
        ) from error
    return len(slices)


def _newest_steps(steps: pl.DataFrame, newest: int) -> pl.Expr:
    """The newest steps of each generation, and what a generation did before its first one ended."""
    last = steps.group_by("generation").agg(pl.col("step").max()).rows()
    known = pl.col("generation").is_in([generation for generation, _ in last])
    return pl.any_horizontal(
        ~known,
        *((pl.col("generation") == one) & (pl.col("step") > step - newest) for one, step in last),
    )


def clock_troubles(run: RunRecords) -> list[str]:
    """A sentence for each node whose clock was never compared with the run's."""
    return [
        f"node {node}: its clock was not compared with the run's, so its ranks are out of line"
        for node, known_ns in Clocks(run).uncertainty_ns().items()
        if known_ns is None
    ]


def parse_steps(text: str) -> tuple[int, int | None]:
    """``10:20``, ``10:`` or ``:20``. Raises InputError."""
    if not text:
        return 0, None
    found = STEPS.fullmatch(text)
    if found is None:
        raise InputError(f"--steps {text!r} is not a range", remedy="write FIRST:LAST, e.g. 10:20")
    first, last = int(found[1] or 0), int(found[2]) if found[2] else None
    if last is not None and last < first:
        raise InputError(f"--steps {text!r} is an inverted range", remedy=f"write {last}:{first}")
    return first, last


def _encoded(slices: list[Slice], name: str) -> bytes:
    if name.endswith((".json", ".json.gz")):
        text = json.dumps({"traceEvents": list(chrome_events(slices)), "displayTimeUnit": "ms"})
        return gzip.compress(text.encode(), 6, mtime=0) if name.endswith(".gz") else text.encode()
    from headway.console.trace.protobuf import encode

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
