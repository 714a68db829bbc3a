"""Where a device is while it hangs: asked by a thread of its own, over a scripted device."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.flight_record import WAITING
from headway.common.node.group_table import GroupLine
from headway.common.plan.collectives import GroupKind, Op, memberships
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Kind
from headway.common.polling import wait_until
from headway.health.sources.flight import FlightSource
from headway.trainer.comm.interface import Aborted
from headway.trainer.device.device_recorder import DeviceRecorder
from headway.trainer.device.position import DevicePosition

LIMIT_S = 30.0


class Stream:
    """A device that passes its marks one after the other, up to where a test lets it."""

    def __init__(self) -> None:
        self.num_marks = self.passed = 0
        self.is_lost = False

    def event(self) -> Mark:
        return Mark(self)


class Mark:
    def __init__(self, stream: Stream) -> None:
        self._stream, self._number = stream, 0

    def record(self) -> None:
        self._stream.num_marks += 1
        self._number = self._stream.num_marks

    def query(self) -> bool:
        if self._stream.is_lost:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return self._number <= self._stream.passed

    def elapsed_time(self, end_event: Mark) -> float:
        return float(end_event._number - self._number)


class Rig:
    def __init__(self, folder: Path) -> None:
        self.writer = FlightWriter.create(folder / "flight-0.bin", 0, 1024)
        self.lines = self.writer.table.begin(0, memberships(Grid(tp=2, dp=2), 0))
        self.stream = Stream()
        self.recorder = DeviceRecorder(self.writer, self.stream.event)
        self.reader = FlightReader(folder / "flight-0.bin")

    @property
    def dp(self) -> GroupLine:
        return self.lines[2 * GroupKind.DP]

    def done(self) -> int:
        return {one.line: one.done for one in self.reader.groups()}[self.dp.line]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_a_hanging_device_is_shown_in_the_record_that_it_hangs_in(rig: Rig, seed: int) -> None:
    """20 of 20, wherever it hangs: two marks a record, of which the device has passed ``at``."""
    kinds = [Kind.FORWARD, Kind.BACKWARD, Kind.REDUCE_SCATTER, Kind.OPTIMIZER] * 8
    at = random.Random(seed).randrange(1, 2 * len(kinds))
    for kind in kinds:
        with rig.recorder.record(kind, step=1):
            pass
    rig.stream.passed = at
    rig.recorder.look()
    passed = rig.reader.header.passed
    assert passed is not None
    assert (passed.sequence, passed.is_end) == ((at - 1) // 2, at % 2 == 0)
    since_ns = passed.since_ns
    rig.recorder.look()
    again = rig.reader.header.passed
    assert again is not None
    assert again.since_ns == since_ns and again.asked_ns > passed.asked_ns, "asked, and still there"


def test_the_agent_reports_where_the_device_is_and_since_when(rig: Rig, tmp_path: Path) -> None:
    source = FlightSource(tmp_path)
    with rig.recorder.record(Kind.FORWARD, step=3, micro_batch=2):
        pass
    (signals,) = source.read()
    assert signals.device is None, "nobody has asked it"
    rig.recorder.look()
    (signals,) = source.read()
    assert signals.device is not None and signals.device.action == ""
    rig.stream.passed = 1
    rig.recorder.look()
    (signals,) = source.read()
    place = signals.device
    assert place is not None
    assert (place.action, place.step, place.micro_batch, place.is_end) == ("FORWARD", 3, 2, False)
    assert 0 <= place.asked_ago_s <= place.age_s + 0.001
    source.close()


def test_a_collective_is_done_once_the_device_has_waited_for_it(rig: Rig) -> None:
    names = []
    for _ in range(3):
        with rig.recorder.record(Kind.REDUCE_SCATTER, step=1) as sequence:
            names.append(rig.dp.enter(Op.REDUCE_SCATTER, 8))
            rig.recorder.name(sequence, names[-1])
    for name in names:
        with rig.recorder.record(Kind.REDUCE_SCATTER, step=1, flags=WAITING, collective=name):
            pass
    for passed, done in ((6, 0), (7, 0), (8, 1), (11, 2), (12, 3)):
        rig.stream.passed = passed
        rig.recorder.look()
        assert rig.done() == done, f"{passed} marks"


def test_nested_records_are_passed_in_the_order_of_their_marks(rig: Rig) -> None:
    """A forward with four waits for tensor-parallel collectives, as a step has them."""
    names = [rig.dp.enter(Op.ALL_GATHER, 8) for _ in range(4)]
    with rig.recorder.record(Kind.FORWARD, step=1):
        for name in names:
            kind, flags = Kind.TENSOR_PARALLEL, WAITING
            with rig.recorder.record(kind, step=1, flags=flags, collective=name):
                pass
    found = []
    for passed in range(11):
        rig.stream.passed = passed
        rig.recorder.look()
        place = rig.reader.header.passed
        assert place is not None
        found.append((place.sequence, place.is_end, rig.done()))
    inside = [(1 + mark // 2, bool(mark % 2), (mark + 1) // 2) for mark in range(8)]
    assert found == [(-1, False, 0), (0, False, 0), *inside, (0, True, 4)]


def test_what_the_computing_thread_has_read_is_passed_too(rig: Rig) -> None:
    name = rig.dp.enter(Op.ALL_GATHER, 8)
    with rig.recorder.record(Kind.REDUCE_SCATTER, step=1, flags=WAITING, collective=name):
        pass
    for kind in (Kind.NORM, Kind.FORWARD):  # the latter reads marks
        with rig.recorder.record(kind, step=1):
            rig.stream.passed = rig.stream.num_marks
    assert len(rig.recorder._read_marks) >= 4
    rig.recorder.look()
    assert rig.done() == 1
    place = rig.reader.header.passed
    assert place is not None and place.sequence >= 1


def test_a_lost_device_ends_the_thread_and_nothing_else(rig: Rig) -> None:
    before = threading.active_count()
    position = DevicePosition(rig.recorder, period_s=0.001)
    assert wait_until(lambda: rig.reader.header.passed is not None, LIMIT_S)
    with rig.recorder.record(Kind.FORWARD, step=1):
        pass
    rig.stream.is_lost = True
    assert wait_until(lambda: threading.active_count() == before, LIMIT_S)
    passed = rig.reader.header.passed
    rig.writer.count_life()
    assert rig.reader.header.alive == 1
    assert rig.reader.header.passed == passed, "the last that was seen stays"
    position.close()


def test_the_end_of_a_generation_adds_the_times_of_its_last_whole_step(rig: Rig) -> None:
    position = DevicePosition(rig.recorder, period_s=0.001)
    for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.NORM):
        with rig.recorder.record(kind, step=1):
            pass
        rig.stream.passed = rig.stream.num_marks
    with pytest.raises(Aborted), rig.recorder.record(Kind.FORWARD, step=2):
        raise Aborted
    rig.stream.passed = rig.stream.num_marks
    assert not rig.reader.snapshot()["device"].any()
    position.close()
    assert (rig.reader.snapshot()["device"] > 0).tolist() == [True, True, True, False]
