"""What of NCCL needs no GPU: how a generation's groups are aborted, and which device and
environment a rank takes."""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from headway.trainer.comm import nccl
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.nccl import JointAbort, take_device


class Group:
    """Its abort ends only once those of all the others have begun, and then fails."""

    def __init__(self, barrier: threading.Barrier, calls: SimpleQueue[bool]) -> None:
        self._barrier, self._calls = barrier, calls

    def abort(self) -> None:
        self._barrier.wait(20)
        self._calls.put(True)
        raise RuntimeError("the communicator is gone")


def test_all_groups_are_aborted_once_at_the_same_time_whatever_fails() -> None:
    """Catches aborts one after the other, where the first would wait for the last."""
    barrier, calls = threading.Barrier(3), SimpleQueue[bool]()
    channels, joint = Channels(), JointAbort()
    channels.on_abort(joint.abort)
    for _ in range(3):
        joint.add(Group(barrier, calls))
    channels.abort()
    channels.abort()
    joint.abort()
    assert [calls.get(timeout=30) for _ in range(3)] == [True] * 3
    assert calls.empty()


def test_groups_that_nobody_aborted_end_together_when_they_are_freed() -> None:
    barrier, calls = threading.Barrier(2), SimpleQueue[bool]()
    joint = JointAbort()
    for _ in range(2):
        joint.add(Group(barrier, calls))
    del joint
    assert [calls.get(timeout=30) for _ in range(2)] == [True] * 2


def test_ranks_take_devices_in_turn_also_when_there_are_more_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for name in nccl._ENVIRONMENT:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_NCCL_ENABLE_MONITORING", "1")
    assert [take_device(rank).index for rank in range(5)] == [0, 1, 2, 0, 1]
    assert [device.index for device in taken] == [0, 1, 2, 0, 1]
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "1", "the user's own setting wins"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_device_is_the_cpu() -> None:
    assert take_device(3) == torch.device("cpu")
