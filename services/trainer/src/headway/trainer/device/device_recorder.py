"""Adds to flight records when the device did their work, without ever waiting for it.

On a GPU the host only launches work, so a record's own times are those of the launch. Here each
record is bracketed by two events on the computation's stream, an anchor ties the device's clock to
the host's, and the times of the events that the device has passed are added to the ring.

The anchor is one event and the host's clock, taken together after every NORM, where the host has
waited for the stream and it is empty. So the device has nothing to do meanwhile, and the events are
read later: some behind each forward and backward that is launched, while the device computes it. A
NORM outside of a step reads all that are left, and so does the end of a generation.

A record that issues a collective or a message on another stream shows when the device reached it;
the record that waits for it shows how long the computation waited.
"""

from __future__ import annotations

import bisect
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from headway.common.node.flight import FlightWriter
from headway.common.node.flight_record import ON_DEVICE, WAITING
from headway.common.plan.schedule.actions import COMPUTE, Kind
from headway.trainer.device.recorder import Recorder

_NS_PER_MS = 1e6
MAX_READ = 1 << 16
"""Most marks that are kept while nobody looks at them; older ones are forgotten."""
PACE = 2
"""Marks read behind each computation for each one that was made, so that reading catches up."""


class DeviceEvent(Protocol):
    """``torch.cuda.Event`` with timing is one. It may be recorded again once it is complete."""

    def record(self) -> None:
        """Mark this place of the current stream."""

    def query(self) -> bool:
        """Whether the device has passed the mark; never waits."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this mark to that of a later event; both are complete."""


class DeviceRecorder:
    """A ``Recorder`` over ``writer``; all calls are made on the thread that computes."""

    def __init__(
        self,
        writer: FlightWriter,
        make_event: Callable[[], DeviceEvent],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._writer, self._make_event, self._clock_ns = writer, make_event, clock_ns
        self._free: list[DeviceEvent] = []
        self._marks: deque[_Mark] = deque()
        self._num_marks = 0
        self._passed: _Mark | None = None
        """The newest mark that the device was seen to pass, by the thread that looks."""
        self._read_marks: deque[_Mark] = deque(maxlen=MAX_READ)
        """Passed and read by the computing thread, and not yet seen by the other one."""
        self._anchor: DeviceEvent | None = None
        self._anchor_ns = self._num_anchors = 0
        self._num_computed = self._num_marks_then = self._portion = 0

    def record(self, kind: int, **fields: int) -> _Timed:
        """One record around a with block, corrected later."""
        return _Timed(self, kind, fields)

    def name(self, seq: int, collective: int) -> None:
        """Add to the open record ``seq`` which collective it has issued."""
        self._writer.name(seq, collective)

    def look(self) -> None:
        """Show which record the device has passed; on a thread of its own, and never waits.

        The marks of one stream are passed in their order, so few of them are asked. One that the
        computing thread has meanwhile read and used again only hides progress until the next look.
        """
        marks = list(self._marks)
        at = bisect.bisect_left(marks, True, key=lambda mark: not mark.event.query())
        while self._read_marks:
            self._pass(self._read_marks.popleft())
        for mark in marks[:at]:
            self._pass(mark)
        passed = self._passed
        sequence, is_end = (passed.record.sequence, passed.is_end) if passed else (-1, False)
        self._writer.show_device(sequence, is_end=is_end)

    def _pass(self, mark: _Mark) -> None:
        """Note that the device has passed a mark; what it had waited for then is done."""
        if self._passed is not None and mark.number <= self._passed.number:
            return  # seen the last time
        self._passed = mark
        if mark.is_end and mark.record.collective:
            self._writer.table.reach(mark.record.collective)

    def add(self, kind: int, start_ns: int, end_ns: int, *, step: int) -> None:
        """One record of what is over already."""
        self._writer.add(kind, start_ns, end_ns, step=step)

    def read_steps(self) -> None:
        """Correct the records before the last NORM; never waits, as the device has passed them.

        What follows it may have been broken off, which ends the device's work at any time.
        """
        before = bisect.bisect_left(self._marks, self._num_anchors, key=lambda one: one.num_anchors)
        self._read(before)

    def set_generation(self, generation: int) -> None:
        """Stamp the records that follow with ``generation``.

        Marks of the generation before may never be passed, so its other records stay as they are.
        """
        self._marks.clear()
        self._read_marks.clear()
        self._writer.set_generation(generation)

    def _mark(self, record: _Timed, *, is_end: bool) -> None:
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        self._num_marks += 1
        self._marks.append(_Mark(event, record, is_end, self._num_anchors, self._num_marks))

    def _computed(self) -> None:
        """A computation was launched: read marks while the device does it."""
        self._num_computed += 1
        self._read(self._portion)

    def _read(self, count: int) -> None:
        """Read up to ``count`` marks, as far as the device has passed them."""
        anchor = self._anchor
        if anchor is None or not anchor.query():  # no time can be asked of before it is passed
            return
        for _ in range(count):
            if not self._marks or not self._marks[0].event.query():
                break
            mark = self._marks.popleft()
            self._read_marks.append(mark)
            mark.record.at(mark, self._host_ns(anchor, mark))
            self._free.append(mark.event)

    def _set_anchor(self) -> None:
        """Tie the clocks, as the stream is empty, and see how many marks to read at a time."""
        fresh = self._free.pop() if self._free else self._make_event()
        fresh.record()
        if self._anchor is not None:
            self._free.append(self._anchor)
        self._anchor, self._anchor_ns = fresh, self._clock_ns()
        self._num_anchors += 1
        made = self._num_marks - self._num_marks_then
        self._portion = PACE * -(-made // max(1, self._num_computed))
        self._num_marks_then, self._num_computed = self._num_marks, 0

    def _host_ns(self, anchor: DeviceEvent, mark: _Mark) -> int:
        if mark.num_anchors == self._num_anchors:
            late_ms = anchor.elapsed_time(mark.event)
        else:  # the mark is older than the anchor
            late_ms = -mark.event.elapsed_time(anchor)
        return self._anchor_ns + round(late_ms * _NS_PER_MS)


@dataclass(slots=True)
class _Mark:
    event: DeviceEvent
    record: _Timed
    is_end: bool
    num_anchors: int
    """Number of anchors set before it."""
    number: int
    """Marks of a stream are passed in this order."""


class _Timed:
    __slots__ = ("_fields", "_kind", "_owner", "_start_ns", "collective", "sequence")

    def __init__(self, owner: DeviceRecorder, kind: int, fields: dict[str, int]) -> None:
        self._owner, self._kind, self.sequence, self._start_ns = owner, kind, -1, 0
        flags = fields.get("flags", 0)
        self._fields = fields | {"flags": flags | ON_DEVICE}
        self.collective = fields.get("collective", 0) if flags & WAITING else 0
        """The collective that the device has waited for at its end; one that it only issues there
        runs on another stream."""

    def __enter__(self) -> int:
        owner = self._owner
        self.sequence = owner._writer.begin(self._kind, **self._fields)
        owner._mark(self, is_end=False)
        return self.sequence

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        owner = self._owner
        if kind is None:
            owner._mark(self, is_end=True)
        owner._writer.end(self.sequence, error=kind)
        if kind is not None:
            return
        if self._kind in COMPUTE:
            owner._computed()
        elif self._kind == Kind.NORM:
            if self._fields["flags"] & WAITING:  # of no step, so nothing is due
                owner._read(len(owner._marks))
            owner._set_anchor()

    def at(self, mark: _Mark, host_ns: int) -> None:
        """The device passed ``mark`` at ``host_ns``."""
        if mark.is_end:
            self._owner._writer.correct(self.sequence, self._start_ns, host_ns)
        else:
            self._start_ns = host_ns


def recorder_for(writer: FlightWriter, device: torch.device) -> Recorder:
    """The recorder of a rank that computes on ``device``."""
    if device.type != "cuda":
        return writer
    event: Any = torch.cuda.Event
    return DeviceRecorder(writer, lambda: event(enable_timing=True))
