"""Where a GPU hangs, as the thread that asks it shows; ``benchmarks.position`` times it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.flight_record import WAITING
from headway.common.plan.collectives import GroupKind, Op, memberships
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Kind
from headway.common.polling import wait_until
from headway.testkit.trainer.held_stream import HeldStream
from headway.trainer.device.choose import take_device
from headway.trainer.device.device_recorder import DeviceRecorder, recorder_for
from headway.trainer.device.position import DevicePosition

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
LIMIT_S = 5.0
"""Less than the time after which the kernel that holds the GPU ends by itself."""


class Rig:
    def __init__(self, folder: Path) -> None:
        device = take_device(0)
        self.writer = FlightWriter.create(folder / "flight-0.bin", 0, 1024)
        self.line = self.writer.table.begin(0, memberships(Grid(tp=2), 0))[2 * GroupKind.TP]
        recorder = recorder_for(self.writer, device)
        assert isinstance(recorder, DeviceRecorder)
        self.recorder, self.reader = recorder, FlightReader(folder / "flight-0.bin")
        self.position = DevicePosition(recorder, device)

    def place(self) -> tuple[int, bool] | None:
        passed = self.reader.header.passed
        return None if passed is None else (passed.sequence, passed.is_end)

    def done(self) -> int:
        return {one.line: one.done for one in self.reader.groups()}[self.line.line]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.position.close()
    torch.cuda.synchronize()
    made.reader.close()
    made.writer.close()


@pytest.mark.parametrize("at", [0, 1, 4, 7])
def test_the_record_that_holds_the_gpu_is_shown_while_the_host_is_far_ahead(
    rig: Rig, at: int
) -> None:
    for index in range(8):
        with rig.recorder.record(Kind.FORWARD, step=1, micro_batch=index):
            if index == at:
                held = HeldStream()
    assert wait_until(lambda: rig.place() == (at, False), LIMIT_S)
    held.release()
    assert wait_until(lambda: rig.place() == (7, True), LIMIT_S)


def test_a_collective_is_done_once_the_gpu_has_waited_for_it(rig: Rig) -> None:
    name = rig.line.enter(Op.ALL_GATHER, 8)
    with rig.recorder.record(Kind.TENSOR_PARALLEL, step=1, flags=WAITING, collective=name):
        held = HeldStream()
    assert wait_until(lambda: rig.place() == (0, False), LIMIT_S)
    assert rig.done() == 0
    held.release()
    assert wait_until(lambda: rig.done() == 1, LIMIT_S)
