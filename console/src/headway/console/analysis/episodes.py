"""What broke and how long each recovery took, from the journal and the flight records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import polars as pl
from headway.common.plan.schedule.actions import Kind
from headway.console.folder.records import RunRecords
from headway.controller.client import JournalEvent

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
    """From a fence to all ranks stepping again. Spans in seconds; None = unknown. They add up.

    detect: the fault put in on purpose -> fence.
    decide: fence -> the last generation's number, survivors having left and the restore point been
        chosen.
    restore: -> the last rank has its state back.
    first_step: -> every rank has completed a step; None for a recovery that ended in a pause,
        with the last rank's state.
    """

    generation: int
    """The generation that continued; -1 while it is under way."""
    reason: str
    """What was lost; what a survivor felt, where nothing more is known."""
    at_unix_s: float
    step: int = -1
    """Completed steps it went back to."""
    source: str = ""
    """``arena``, ``durable``, ``mixed`` or ``init``."""
    is_paused: bool = False
    """Whether the ranks came back into a pause, so that none of them stepped."""
    attempts: int = 0
    """Generations it took: 1 unless a second fault came in between."""
    detect_s: float | None = None
    decide_s: float | None = None
    restore_s: float | None = None
    first_step_s: float | None = None
    total_s: float | None = None
    """From the fault, where its time is known, else from the fence."""
    begun_s: float = field(default=0.0, repr=False)
    ended_s: float | None = field(default=None, repr=False)
    generation_s: float = field(default=0.0, repr=False)
    is_symptom: bool = field(default=False, repr=False)


SCHEMA = {
    "generation": pl.Int64,
    "reason": pl.String,
    "at_unix_s": pl.Float64,
    "step": pl.Int64,
    "source": pl.String,
    "is_paused": pl.Boolean,
    "attempts": pl.Int64,
    **dict.fromkeys(("detect_s", "decide_s", "restore_s", "first_step_s", "total_s"), pl.Float64),
}


def load_journal(run: RunRecords) -> pl.DataFrame:
    """The journal's events in order, columns ``JOURNAL``; ``fields`` is JSON."""
    rows = [row[1:] for row in run.records.event_rows()]
    return pl.DataFrame(rows, schema=JOURNAL, orient="row")


def recoveries(journal: Iterable[JournalEvent], events: pl.DataFrame | None = None) -> pl.DataFrame:
    """One row per recovery, columns ``SCHEMA``.

    Without ``events`` (flight records of the run) ``restore_s`` is null and ``first_step_s``
    counts from the generation's number.
    """
    found = Episodes(journal).all()
    if events is not None:
        for recovery in found:
            _split(recovery, events)
    rows = [
        {key: value for key, value in asdict(recovery).items() if key in SCHEMA}
        for recovery in found
    ]
    return pl.DataFrame(rows, schema=SCHEMA)


class Episodes:
    """The recoveries of a journal, fed with its events in their order.

    What a stop or the end of everything cut short is left out: the time until the next start is not
    a recovery.
    """

    def __init__(self, journal: Iterable[JournalEvent] = ()) -> None:
        self.done: list[Recovery] = []
        self.open: Recovery | None = None
        """The one under way."""
        self._cause_s: float | None = None
        self._is_new_driver = False  # until its events show whether it found the ranks alive
        for event in journal:
            self.feed(event)

    def all(self) -> list[Recovery]:
        """Those that are over, then the one under way."""
        return [*self.done, *([self.open] if self.open is not None else [])]

    def feed(self, event: JournalEvent) -> None:
        """Take in the next event."""
        name, now, fields = event.name, event.monotonic_s, event.fields
        if name == "run_over" or (name == "generation" and self._is_new_driver):
            self.open = self._cause_s = None
        self._is_new_driver = name == "driver_started" or (
            self._is_new_driver and name not in _FOUND_ALIVE
        )
        if name in CAUSES and fields.get("target", "worker") == "worker":
            self._cause_s = now if self._cause_s is None else self._cause_s
        elif name == "stepping":
            self._end(now, is_paused=bool(fields.get("paused")))
        elif name == "fence" and self.open is None:
            detect = None if self._cause_s is None else now - self._cause_s
            self.open = Recovery(
                -1, str(fields.get("reason", "")), event.unix_s, detect_s=detect, begun_s=now,
                is_symptom=bool(fields.get("is_symptom")),
            )  # fmt: skip
        elif self.open is not None:
            with contextlib.suppress(KeyError, ValueError, TypeError):  # a flipped bit in a name
                self._learn(self.open, name, now, fields)

    def _learn(self, recovery: Recovery, name: str, now: float, fields: dict[str, Any]) -> None:
        if name in _LOSSES and recovery.is_symptom:
            recovery.reason, recovery.is_symptom = _LOSSES[name].format_map(fields), False
        elif name == "generation":
            recovery.attempts += 1
            recovery.generation, recovery.generation_s = int(fields["generation"]), now
            recovery.step, recovery.source = int(fields["step"]), str(fields["source"])
            recovery.decide_s = now - recovery.begun_s

    def _end(self, now: float, *, is_paused: bool) -> None:
        if (recovery := self.open) is not None:
            recovery.is_paused = is_paused
            span_s = now - recovery.generation_s
            recovery.restore_s, recovery.first_step_s = (
                (span_s, None) if is_paused else (None, span_s)
            )
            recovery.total_s = now - recovery.begun_s + (recovery.detect_s or 0.0)
            recovery.ended_s = now
            self.done.append(recovery)
        self.open = self._cause_s = None


def _split(recovery: Recovery, events: pl.DataFrame) -> None:
    """Separate restore from first step by the slowest rank's records."""
    is_restore = pl.col("action") == Kind.RESTORE.name
    mine = events.filter((pl.col("generation") == recovery.generation) & is_restore)
    restored = mine["end_ns"].max()
    if not isinstance(restored, int) or recovery.first_step_s is None:
        return
    restore_s, span_s = restored * 1e-9 - recovery.generation_s, recovery.first_step_s
    if 0 <= restore_s <= span_s:  # else clocks are not known to that
        recovery.restore_s, recovery.first_step_s = restore_s, span_s - restore_s
