"""Progress of each rank, from the flight rings in the node's shared memory."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.common.node.flight import FlightReader
from headway.common.node.flight_header import FlightHeader
from headway.common.node.flight_record import BROKEN, ON_DEVICE, Record, plain
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.group_table import GroupRow, pack
from headway.common.wire.messages.health import (
    DevicePlace,
    RankPhase,
    Waits,
    WorkerSignals,
)
from headway.health.sources.open_files import OpenFiles

PHASES: dict[Kind, RankPhase] = {
    Kind.JOIN: "join",
    Kind.RESTORE: "restore",
    Kind.EVAL: "eval",
    Kind.SAMPLE: "sample",
}
"""Actions that may take long; while one is open, the rolling limit does not apply."""

_STEP, _FLUSH = int(Kind.STEP), int(Kind.FLUSH)
"""Kinds as plain numbers: looking up a member of an enum takes as long as ten comparisons."""
_NAMES = {int(kind): kind.name for kind in Kind}
INSTANT_NS = 1_000_000
"""A shorter step record was written at the step's end only."""


@dataclass(frozen=True, slots=True)
class _Open:
    """An open record at the last reading."""

    kind: int
    micro_batch: int
    start_ns: int
    on_device: bool


@dataclass(slots=True)
class _Follower:
    """State of earlier readings of one ring, so that only new records need to be copied."""

    reader: FlightReader
    durations_s: deque[float]
    """Durations of the last steps of this generation."""
    seen: int = 0
    """Records below this sequence number were read; open ones among them are kept in ``open``."""
    counters: tuple[int, int, int, int] = (-1, -1, -1, -1)
    changed_ns: int = 0
    alive: tuple[int, int] = (0, -1)
    """Its turns and its process at the last reading, and since when they are so:"""
    alive_ns: int = 0
    open: dict[int, _Open] = field(default_factory=dict)
    """By sequence."""
    step: int = -1
    step_s: float = 0.0
    step_end_ns: int = 0
    generation: int = -1
    num_steps: int = 0

    def close(self) -> None:
        self.reader.close()


class FlightSource:
    """Reads every ``flight-*.bin`` of a folder. Rings may appear, disappear or be replaced."""

    def __init__(
        self, folder: Path, window_steps: int = 16, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """``window_steps``: how many of the last steps the median is taken over."""
        self._window_steps, self._clock_ns = window_steps, clock_ns
        self._rings = OpenFiles(folder, "flight-", self._follow)

    def read(self) -> list[WorkerSignals]:
        """Read every ring once, and return what it shows of its rank, by rank.

        What the kernel knows of the process is left out, and so is a ring until it can be opened.
        """
        found = [self._read_one(follower) for follower in self._rings.look()]
        return sorted((one for one in found if one is not None), key=lambda one: one.rank)

    def close(self) -> None:
        self._rings.close()

    def _read_one(self, follower: _Follower) -> WorkerSignals | None:
        header, now_ns = follower.reader.header, self._clock_ns()
        if header.process.pid == 0:
            return None  # its writer is being recorded
        moved_ns = _advance(follower, header)
        counters = (header.head, header.progress, header.process.pid, header.waits)
        if counters != follower.counters:
            # else it is another process, or only its waits moved
            is_exact = moved_ns > follower.changed_ns and _is_same(follower, header)
            follower.changed_ns = min(moved_ns, now_ns) if is_exact else now_ns
            follower.counters = counters
        alive = (header.alive, header.process.pid)
        if alive != follower.alive:
            follower.alive, follower.alive_ns = alive, now_ns
        newest = follower.open[max(follower.open)] if follower.open else None
        return WorkerSignals(
            rank=header.rank,
            pid=header.process.pid,
            start_ticks=header.process.start_ticks,
            state="",
            generation=header.generation,
            head=header.head,
            step=follower.step,
            step_s=follower.step_s,
            num_steps=follower.num_steps,
            median_step_s=statistics.median(follower.durations_s) if follower.durations_s else 0.0,
            age_s=max(0, now_ns - follower.changed_ns) / 1e9,
            open_kind=_name(newest.kind) if newest else "",
            open_micro_batch=newest.micro_batch if newest else -1,
            phase=_phase(follower),
            alive_age_s=(now_ns - follower.alive_ns) / 1e9 if header.alive else -1.0,
            waits=_waits(follower, header),
            step_age_s=_step_age_s(follower, now_ns),
            packed_groups=_groups(follower.reader, now_ns),
            device=_device(follower.reader, header, now_ns),
        )

    def _follow(self, path: Path) -> _Follower:
        return _Follower(FlightReader(path), deque(maxlen=self._window_steps))


def _groups(reader: FlightReader, now_ns: int) -> bytes:
    return pack(
        GroupRow(
            one.line,
            one.number,
            one.size,
            one.op,
            one.nbytes,
            one.entered,
            one.done,
            _ago_ms(one.entered_ns, now_ns),
            _ago_ms(one.done_ns, now_ns),
        )
        for one in reader.groups()
    )


def _ago_ms(at_ns: int, now_ns: int) -> int:
    return max(0, now_ns - at_ns) // 1_000_000 if at_ns else -1


def _device(reader: FlightReader, header: FlightHeader, now_ns: int) -> DevicePlace | None:
    passed = header.passed
    if passed is None:
        return None
    row = reader.at(passed.sequence)
    return DevicePlace(
        _name(row.kind) if row is not None else "",
        row.step if row is not None else -1,
        row.micro_batch if row is not None else -1,
        passed.is_end,
        max(0, now_ns - passed.since_ns) / 1e9,
        max(0, now_ns - passed.asked_ns) / 1e9,
    )


def _is_same(follower: _Follower, header: FlightHeader) -> bool:
    """Whether the process is that of the reading before, if there was one."""
    return follower.counters[2] in (-1, header.process.pid)


def _phase(follower: _Follower) -> RankPhase:
    kinds = {one.kind for one in follower.open.values()}
    return next((phase for kind, phase in PHASES.items() if kind in kinds), "step")


def _waits(follower: _Follower, header: FlightHeader) -> Waits:
    if header.is_waiting:
        return "others"
    return "device" if any(one.on_device for one in follower.open.values()) else ""


def _step_age_s(follower: _Follower, now_ns: int) -> float:
    begun = [one.start_ns for one in follower.open.values() if one.kind == _STEP]
    return max(0, now_ns - max(begun)) / 1e9 if begun else -1.0


def _advance(follower: _Follower, header: FlightHeader) -> int:
    """Note what is new, and which of the open records have ended.

    Returns the newest time stamp among them, 0 without any. Records left open by an earlier process
    or generation of the rank stay open and do not count.
    """
    if not _is_same(follower, header):
        follower.open.clear()
    # a long step has thousands of records between those that were open and the new ones
    earlier = [follower.reader.at(one) for one in sorted(follower.open) if one < follower.seen]
    rows = [one for one in earlier if one is not None]  # else overwritten meanwhile
    new, newest_ns = follower.reader.snapshot(follower.seen), 0
    if len(new):
        end_ns = new["end_ns"]
        newest_ns = int(max(new["start_ns"].max(), end_ns.max()))
        [wanted] = ((end_ns == 0) | (new["kind"] == _STEP)).nonzero()
        rows += [plain(new[at].tobytes()) for at in wanted.tolist()]
    follower.open, steps = {}, []
    for row in rows:
        if row.end_ns:
            newest_ns = max(newest_ns, row.end_ns)
            if row.kind == _STEP and not row.flags & BROKEN:
                steps.append(row)
        # a slow disk may take its time at the run's end
        elif row.generation == header.generation and row.kind != _FLUSH:
            follower.open[row.sequence] = _Open(
                row.kind, row.micro_batch, row.start_ns, bool(row.flags & ON_DEVICE)
            )
    _note_steps(follower, header, steps)
    follower.seen = max(follower.seen, header.head)
    return newest_ns


def _note_steps(follower: _Follower, header: FlightHeader, steps: Sequence[Record]) -> None:
    """Collect finished steps; one that was recorded at its end began at the end of the one before.

    Those of other generations set the time, and do not count.
    """
    if header.generation != follower.generation:
        follower.generation, follower.num_steps = header.generation, 0
        follower.durations_s.clear()
    for row in steps:
        if row.end_ns <= follower.step_end_ns:
            continue
        is_instant = row.end_ns - row.start_ns < INSTANT_NS and follower.step_end_ns > 0
        begun_ns = follower.step_end_ns if is_instant else row.start_ns
        follower.step, follower.step_s = row.step, (row.end_ns - begun_ns) / 1e9
        follower.step_end_ns = row.end_ns
        if row.generation == header.generation:
            follower.num_steps += 1
            follower.durations_s.append(follower.step_s)


def _name(kind: int) -> str:
    return _NAMES.get(kind, str(kind))
