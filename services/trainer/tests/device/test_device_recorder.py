"""Flight records get the device's times, over a device whose clock and work are scripted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.flight_record import BROKEN, WAITING, awaits_device, device_times
from headway.common.plan.schedule.actions import Kind
from headway.trainer.device import device_recorder
from headway.trainer.device.device_recorder import DeviceRecorder, recorder_for

MS = 1_000_000


EVENT_NS = 5_000
"""An idle device passes an event so long after the host has recorded it."""


class Device:
    """One stream. The host launches work, which runs in order; the device's clock counts from
    elsewhere than the host's. ``now_ns`` is the host's time."""

    origin_ms = 123_456.0

    def __init__(self, now_ns: int) -> None:
        self.now_ns, self.busy_until_ns = now_ns, 0
        self.num_events = self.num_read = 0

    def work(self, ms: float, launch_ms: float = 0.01) -> tuple[int, int]:
        """Launch work; when it really runs."""
        self.now_ns += round(launch_ms * MS)
        start_ns = max(self.busy_until_ns, self.now_ns)
        self.busy_until_ns = start_ns + round(ms * MS)
        return start_ns, self.busy_until_ns

    def wait(self) -> None:
        """The host waits until the device is done."""
        self.now_ns = max(self.now_ns, self.busy_until_ns) + EVENT_NS

    def event(self) -> Event:
        self.num_events += 1
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self._device, self.at_ns = device, -1

    def record(self) -> None:
        assert self.at_ns < 0 or self.query(), "recorded again while the device has yet to pass it"
        self.at_ns = max(self._device.now_ns, self._device.busy_until_ns) + EVENT_NS

    def query(self) -> bool:
        return 0 <= self.at_ns <= self._device.now_ns

    def elapsed_time(self, end_event: Any) -> float:
        assert self.query() and end_event.query(), "read before the device has passed it"
        assert self.at_ns <= end_event.at_ns, "CUDA documents no negative times"
        self._device.num_read += 1
        of_device = [Device.origin_ms + event.at_ns / MS for event in (self, end_event)]
        return float(np.float32(of_device[1] - of_device[0]))


class Rig:
    """A recorder over a real ring, whose host clock is the scripted one."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writer, self.reader = FlightWriter.create(path, 0), FlightReader(path)
        self.device = Device(10**12)
        monkeypatch.setattr(
            "headway.common.node.flight.time.monotonic_ns", lambda: self.device.now_ns
        )
        self.recorder = DeviceRecorder(self.writer, self.device.event, lambda: self.device.now_ns)
        self.true: dict[tuple[int, int], tuple[int, int]] = {}

    def action(self, kind: Kind, step: int, ms: float) -> None:
        with self.recorder.record(kind, step=step):
            self.true[kind, step] = self.device.work(ms)

    def norm(self, step: int) -> None:
        with self.recorder.record(Kind.NORM, step=step):
            self.device.work(0.1)
            self.device.wait()

    def step(self, step: int, num_messages: int = 0) -> None:
        with self.recorder.record(Kind.STEP, step=step):
            self.action(Kind.FORWARD, step, 5.0)
            for _ in range(num_messages):
                self.action(Kind.RECV_BACKWARD, step, 0.1)
            self.action(Kind.BACKWARD, step, 11.0)
            self.norm(step)
            self.action(Kind.OPTIMIZER, step, 2.0)

    def control_round(self, step: int) -> None:
        with self.recorder.record(Kind.NORM, step=step, flags=WAITING):
            self.device.wait()

    def unknown(self) -> list[tuple[int, int]]:
        """Kind and step of the records whose times of the device are to come."""
        records = self.records()
        rows = records[awaits_device(records)]
        return [(int(row["kind"]), int(row["step"])) for row in rows]

    def records(self) -> Any:
        return self.reader.snapshot()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(tmp_path / "flight", monkeypatch)
    yield made
    made.writer.close()
    made.reader.close()


def test_records_get_the_times_at_which_the_device_did_the_work(rig: Rig) -> None:
    for step in range(4):
        rig.step(step)
    rig.recorder.read_steps()
    records = rig.records()
    launched = records[records["kind"] == Kind.BACKWARD][0]
    assert launched["end_ns"] - launched["start_ns"] < MS, "the host only launches"
    shown = device_times(records)
    for (kind, step), (start_ns, end_ns) in rig.true.items():
        (row,) = shown[(shown["kind"] == kind) & (shown["step"] == step)]
        if step == 3 and kind == Kind.OPTIMIZER:
            assert not row["device"], "no NORM has come since"
            continue
        assert abs(int(row["start_ns"]) - start_ns) < 20_000, (Kind(kind).name, step)
        assert abs(int(row["end_ns"]) - end_ns) < 20_000, (Kind(kind).name, step)
    assert set(records["step"][awaits_device(records)]) == {3}


def test_a_step_contains_its_actions_and_ends_before_the_next_one(rig: Rig) -> None:
    for step in range(4):
        rig.step(step)
    rig.recorder.read_steps()
    shown = device_times(rig.records())
    whole = shown[(shown["kind"] == Kind.STEP) & (shown["device"] > 0)]
    assert whole["step"].tolist() == [0, 1, 2]
    for row in whole:
        inside = shown[(shown["step"] == row["step"]) & (shown["kind"] != Kind.STEP)]
        assert (inside["start_ns"] >= row["start_ns"]).all()
        assert (inside["end_ns"] <= row["end_ns"]).all()
        forward, backward, norm, optimizer = inside
        assert forward["end_ns"] <= backward["start_ns"] < backward["end_ns"] <= norm["end_ns"]
        assert norm["end_ns"] <= optimizer["start_ns"] + np.uint64(1000)
    assert (whole["end_ns"][:-1] <= whole["start_ns"][1:] + np.uint64(1000)).all()


def test_events_are_used_again(rig: Rig) -> None:
    for step in range(3):
        rig.step(step)
    made = rig.device.num_events
    for step in range(3, 50):
        rig.step(step)
    assert rig.device.num_events == made <= 3 * 10 + 2


@pytest.mark.parametrize("num_messages", [0, 40])
def test_marks_are_read_behind_computations_and_never_while_the_device_has_nothing_to_do(
    rig: Rig, num_messages: int
) -> None:
    norm, num_unread = rig.norm, []

    def unread_norm(step: int) -> None:
        before = rig.device.num_read
        norm(step)
        assert rig.device.num_read == before
        num_unread.append(len(rig.recorder._marks))

    rig.norm = unread_norm  # type: ignore[method-assign]
    for step in range(20):
        rig.step(step, num_messages)
        is_late = [one for one in rig.unknown() if one[1] < step - 1]
        assert not is_late, "what a step has made is read in the next one"
    assert max(num_unread) <= 2 * (num_messages + 5) * 2, "those of two steps at most"


def test_a_step_with_many_more_records_than_those_before_is_read_in_the_next(rig: Rig) -> None:
    for step in range(12):
        rig.step(step, 500 if step == 5 else 2)
        assert not [one for one in rig.unknown() if one[1] < step - 1]


def test_a_norm_outside_of_a_step_reads_all_that_came_before(rig: Rig) -> None:
    for step in range(3):
        rig.step(step, 30)
    assert rig.unknown()
    rig.control_round(3)
    assert rig.unknown() == [(Kind.NORM, 3)], "its own end is not passed yet"


def test_what_was_broken_off_is_never_corrected(rig: Rig) -> None:
    for step in range(2):
        rig.step(step)
    with (
        pytest.raises(RuntimeError, match="a peer"),
        rig.recorder.record(Kind.STEP, step=2),
        rig.recorder.record(Kind.FORWARD, step=2),
    ):
        rig.device.work(1e9)  # it never ends
        raise RuntimeError("a peer")
    rig.device.busy_until_ns = rig.device.now_ns  # aborted
    rig.recorder.read_steps()  # as at the end of each generation
    first = rig.records()
    computed = first[np.isin(first["kind"], [Kind.FORWARD, Kind.BACKWARD, Kind.NORM])]
    assert (computed["device"][computed["step"] < 2] > 0).all()
    rig.recorder.set_generation(1)
    for step in (2, 3):
        rig.step(step)
    records = rig.records()
    broken = records[records["flags"] & BROKEN > 0]
    assert broken["kind"].tolist() == [Kind.STEP, Kind.FORWARD]
    assert not broken["device"].any() and not awaits_device(broken).any()
    rig.recorder.read_steps()
    records = rig.records()
    again = records[(records["generation"] == 1) & (records["step"] == 2)]
    assert (again["device"] > 0).all()


def test_only_a_gpu_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, bool]] = []
    monkeypatch.setattr(torch.cuda, "Event", lambda **how: made.append(how) or Event(Device(0)))
    writer = FlightWriter.create(tmp_path / "flight", 0)
    assert recorder_for(writer, torch.device("cpu")) is writer
    found = recorder_for(writer, torch.device("cuda", 0))
    assert isinstance(found, device_recorder.DeviceRecorder)
    with found.record(Kind.FORWARD, step=0):
        pass
    assert made == [{"enable_timing": True}] * 2
    writer.close()
