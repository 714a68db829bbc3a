"""How far has each rank come? Progress of the flight rings in the node's shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
from headway.common.errors import HeadwayError
from headway.common.node.flight import FlightHeader, FlightReader
from headway.common.node.process import ProcessId
from headway.common.plan.schedule.actions import Kind

PHASES = {Kind.JOIN: "join", Kind.RESTORE: "restore", Kind.EVAL: "eval"}
"""Actions that may rightly take long; while one is open the rolling limit does not apply."""

INSTANT_NS = 1_000_000
"""A shorter step record was written at the step's end only."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One rank's ring at one reading."""

    rank: int
    process: ProcessId
    generation: int
    head: int
    step: int
    step_s: float
    age_s: float
    open_kind: str
    open_micro_batch: int
    phase: str


@dataclass(slots=True)
class _Follower:
    """What earlier readings of one ring leave behind. Only new records are copied, so a reading costs
    little."""

    reader: FlightReader
    inode: int
    seen: int = 0
    """Records below this sequence number were read, the open ones among them are kept in ``open``."""
    counters: tuple[int, int, int] = (-1, -1, -1)
    changed_ns: int = 0
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Sequence -> (kind, micro-batch) of records that were open at the last reading."""
    first: int = 0
    """Sequence from which on the records are the present process's own, as far as is known."""
    step: int = -1
    step_s: float = 0.0
    step_end_ns: int = 0


class FlightSource:
    """Reads every ``flight-*.bin`` of a folder. Rings that come, go or are replaced are followed."""

    def __init__(self, folder: Path, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._folder, self._clock_ns = folder, clock_ns
        self._followers: dict[Path, _Follower] = {}

    def read(self) -> list[Progress]:
        """One reading of every ring, by rank. A ring that cannot be opened is left out until it can."""
        paths = sorted(self._folder.glob("flight-*.bin"))
        for path in set(self._followers) - set(paths):
            self._followers.pop(path).reader.close()
        found = [self._read_one(path) for path in paths]
        return sorted((progress for progress in found if progress is not None), key=lambda one: one.rank)

    def close(self) -> None:
        for follower in self._followers.values():
            follower.reader.close()
        self._followers.clear()

    def _read_one(self, path: Path) -> Progress | None:
        try:
            follower = self._follower(path)
        except (OSError, HeadwayError):
            return None  # being created, or removed between listing and opening
        header, now_ns = follower.reader.header, self._clock_ns()
        if header.process.pid == 0:
            return None  # its writer is just being recorded
        moved_ns = _advance(follower, header)
        counters = (header.head, header.progress, header.process.pid)
        if counters != follower.counters:
            is_new_process = follower.counters[2] not in (-1, header.process.pid)
            follower.changed_ns = now_ns if is_new_process or not moved_ns else min(moved_ns, now_ns)
            follower.counters = counters
        kinds = [kind for kind, _ in follower.open.values()]
        newest = follower.open[max(follower.open)] if follower.open else None
        return Progress(
            rank=header.rank,
            process=header.process,
            generation=header.generation,
            head=header.head,
            step=follower.step,
            step_s=follower.step_s,
            age_s=max(0, now_ns - follower.changed_ns) / 1e9,
            open_kind=_name(newest[0]) if newest else "",
            open_micro_batch=newest[1] if newest else -1,
            phase=next((phase for kind, phase in PHASES.items() if kind in kinds), "step"),
        )

    def _follower(self, path: Path) -> _Follower:
        inode = path.stat().st_ino
        known = self._followers.get(path)
        if known is not None and known.inode == inode:
            return known
        if known is not None:
            self._followers.pop(path).reader.close()
        made = self._followers[path] = _Follower(FlightReader(path), inode)
        return made


def _advance(follower: _Follower, header: FlightHeader) -> int:
    """Copies what is new, and the still open records once more to see which have ended.

    Returns the newest time stamp among them, 0 without any. What an earlier process or generation of the rank
    left open stays open for ever and is not counted.
    """
    if follower.counters[2] not in (-1, header.process.pid):
        follower.open.clear()
        follower.first = header.head
    records = follower.reader.snapshot(min([follower.seen, *follower.open]))
    is_open = (records["end_ns"] == 0) & (records["generation"] == header.generation)
    follower.open = {
        int(row["sequence"]): (int(row["kind"]), int(row["micro_batch"]))
        for row in records[is_open & (records["sequence"] >= follower.first)]
    }
    _note_step(follower, records[(records["kind"] == Kind.STEP) & (records["end_ns"] > 0)])
    follower.seen = max(follower.seen, header.head)
    return int(max(records["start_ns"].max(), records["end_ns"].max())) if len(records) else 0


def _note_step(follower: _Follower, steps: npt.NDArray[Any]) -> None:
    """Takes the last finished step; one that was recorded only at its end lasts since the one before it."""
    for row in steps[-2:]:
        start_ns, end_ns = int(row["start_ns"]), int(row["end_ns"])
        if end_ns <= follower.step_end_ns:
            continue
        begun_ns = (
            start_ns if end_ns - start_ns > INSTANT_NS or not follower.step_end_ns else follower.step_end_ns
        )
        follower.step, follower.step_s = int(row["step"]), (end_ns - begun_ns) / 1e9
        follower.step_end_ns = end_ns


def _name(kind: int) -> str:
    return Kind(kind).name if kind in Kind.__members__.values() else str(kind)
