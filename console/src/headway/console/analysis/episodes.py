"""What broke, and how long did it take to go on? Told from the journal and the flight records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import polars as pl
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.events import completed_steps
from headway.console.records import RunRecords

JOURNAL = {
    "epoch": pl.Int64,
    "monotonic_s": pl.Float64,
    "unix_s": pl.Float64,
    "name": pl.String,
    "fields": pl.String,
}
CAUSES = frozenset({"injected", "evicted"})
"""Faults put in on purpose; one of a service needs no recovery of the ranks."""

_LOSSES = {
    "worker_lost": "rank {rank} is lost: {reason}",
    "worker_failed": "rank {rank} failed: {reason}",
    "node_lost": "node {node} is lost: {reason}",
}
"""What a survivor's broken connection turns out to have come from."""

_FOUND_ALIVE = frozenset({"adopted", "fence", "generation"})
"""First words of a new driver; ``generation`` comes first when there were no ranks to take over."""


@dataclass
class Recovery:
    """From a fence to all ranks stepping again. Spans in seconds; None = unknown.

    detect: the fault put in on purpose -> fence. decide: fence -> the last generation's number, survivors
    having left and the restore point been chosen. restore: -> the last rank has its state back. first_step:
    -> every rank has completed a step.
    """

    generation: int
    """The generation that went on; -1 while it is under way."""
    reason: str
    """What was lost; what a survivor felt, where nothing more is known."""
    at_unix_s: float
    step: int = -1
    """Completed steps it went back to."""
    source: str = ""
    """``arena``, ``durable``, ``mixed`` or ``init``."""
    attempts: int = 0
    """Generations it took: 1 unless a second fault came in between."""
    detect_s: float | None = None
    decide_s: float | None = None
    restore_s: float | None = None
    first_step_s: float | None = None
    total_s: float | None = None
    """From the fault, where its time is known, else from the fence."""
    begun_s: float = field(default=0.0, repr=False)
    generation_s: float = field(default=0.0, repr=False)
    is_symptom: bool = field(default=False, repr=False)


SCHEMA = {
    "generation": pl.Int64,
    "reason": pl.String,
    "at_unix_s": pl.Float64,
    "step": pl.Int64,
    "source": pl.String,
    "attempts": pl.Int64,
    **dict.fromkeys(("detect_s", "decide_s", "restore_s", "first_step_s", "total_s"), pl.Float64),
}


def load_journal(run: RunRecords) -> pl.DataFrame:
    """The journal's events in order, columns ``JOURNAL``; ``fields`` is JSON."""
    rows = run.query(f"SELECT {', '.join(JOURNAL)} FROM events ORDER BY id")
    return pl.DataFrame(rows, schema=JOURNAL, orient="row")


def recoveries(journal: pl.DataFrame, events: pl.DataFrame | None = None) -> pl.DataFrame:
    """One row per recovery, columns ``SCHEMA``.

    Without ``events`` (flight records of the same host) ``restore_s`` is null and ``first_step_s`` counts
    from the generation's number.
    """
    found = list(_episodes(journal.iter_rows(named=True)))
    if events is not None and not events.is_empty():
        for recovery in found:
            _split(recovery, events)
    rows = [
        {key: value for key, value in asdict(recovery).items() if key in SCHEMA}
        for recovery in found
    ]
    return pl.DataFrame(rows, schema=SCHEMA)


def _episodes(rows: Iterator[dict[str, Any]]) -> Iterator[Recovery]:
    """Whatever a stop or the end of everything cut short is left out: the time until the next start is no recovery."""
    open_one: Recovery | None = None
    cause_s: float | None = None
    is_new_driver = False  # until it says whether it found the ranks alive
    for row in rows:
        now, fields = float(row["monotonic_s"]), json.loads(row["fields"])
        if row["name"] == "run_over" or (row["name"] == "generation" and is_new_driver):
            open_one = cause_s = None
        is_new_driver = row["name"] == "driver_started" or (
            is_new_driver and row["name"] not in _FOUND_ALIVE
        )
        match row["name"]:
            case name if name in CAUSES and fields.get("target", "worker") == "worker":
                cause_s = now if cause_s is None else cause_s
            case "fence" if open_one is None:
                detect = None if cause_s is None else now - cause_s
                open_one = Recovery(-1, str(fields.get("reason", "")), float(row["unix_s"]), detect_s=detect,
                                    begun_s=now, is_symptom=bool(fields.get("is_symptom")))  # fmt: skip
            case loss if open_one is not None and open_one.is_symptom and loss in _LOSSES:
                open_one.reason, open_one.is_symptom = _LOSSES[loss].format_map(fields), False
            case "generation" if open_one is not None:
                open_one.attempts += 1
                open_one.generation, open_one.generation_s = int(fields["generation"]), now
                open_one.step, open_one.source = int(fields["step"]), str(fields["source"])
                open_one.decide_s = now - open_one.begun_s
            case "stepping" if open_one is not None:
                open_one.first_step_s = now - open_one.generation_s
                open_one.total_s = now - open_one.begun_s + (open_one.detect_s or 0.0)
                yield open_one
                open_one = cause_s = None
            case "stepping":
                cause_s = None
            case _:
                pass
    if open_one is not None:
        yield open_one


def _split(recovery: Recovery, events: pl.DataFrame) -> None:
    """Tell restore from first step by the slowest rank's records."""
    mine = events.filter(pl.col("generation") == recovery.generation)
    restored = mine.filter(pl.col("action") == Kind.RESTORE.name)["end_ns"].max()
    first = completed_steps(mine).group_by("rank").agg(pl.col("end_ns").min())["end_ns"].max()
    if not isinstance(restored, int) or not isinstance(first, int) or recovery.first_step_s is None:
        return
    restore_s, step_s = restored * 1e-9 - recovery.generation_s, (first - restored) * 1e-9
    if restore_s >= 0 and step_s >= 0:  # else records of another host's clock
        recovery.restore_s, recovery.first_step_s = restore_s, step_s
