"""What of NCCL needs no GPU: how a generation's groups are aborted, and which device and
environment a rank takes."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from headway.common.config import from_dict
from headway.common.plan.grid import Grid
from headway.trainer.comm import factories, groups, nccl
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.ctas import Ctas
from headway.trainer.comm.interface import Aborted, Comm, SingleRank, StuckTransport
from headway.trainer.comm.nccl import JointAbort, nccl_group, read_when_ready
from headway.trainer.comm.p2p import PipeComm
from headway.trainer.comm.store import StoreClient
from headway.trainer.config import ParallelConfig, RunConfig
from headway.trainer.device import choose as device
from headway.trainer.device.choose import take_device
from headway.trainer.worker.failures import breaks_device
from structlog.testing import capture_logs


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


class Options:
    """As torch's, which a build without CUDA does not have."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = SimpleNamespace(blocking=-1, max_ctas=-1)


class FakeNccl:
    """Records how groups are made."""

    made: list[FakeNccl] = []  # noqa: RUF012
    Options = Options

    def __init__(self, _: Any, rank: int, size: int, options: Options) -> None:
        self.rank, self.size, self.options = rank, size, options
        self.messages: list[tuple[str, int]] = []
        self.made.append(self)

    def eager_connect_single_device(self, _: torch.device) -> None:
        """Connects nobody."""

    def send(self, tensors: list[torch.Tensor], peer: int, _: int) -> SimpleNamespace:
        return self._queued("send", tensors, peer)

    def recv(self, tensors: list[torch.Tensor], peer: int, _: int) -> SimpleNamespace:
        return self._queued("recv", tensors, peer)

    def _queued(self, what: str, tensors: list[torch.Tensor], peer: int) -> SimpleNamespace:
        assert [tensor.numel() for tensor in tensors] == [1]
        self.messages.append((what, peer))
        return SimpleNamespace(wait=lambda: None)

    def abort(self) -> None:
        """Nothing is there."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeNccl]:
    monkeypatch.setattr(nccl, "_dist", SimpleNamespace(ProcessGroupNCCL=FakeNccl))
    for name in device.ENVIRONMENT:
        monkeypatch.setenv(name, "")  # what the code sets is undone
    FakeNccl.made.clear()
    return FakeNccl.made


def test_only_pairs_of_stages_are_held_to_a_few_sms_and_all_have_high_priority(
    made: list[FakeNccl], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receives that are posted ahead spin; collectives must not queue behind matrix products."""
    monkeypatch.setattr(factories._dist, "PrefixStore", lambda *_: None)
    ctas = Ctas.of(ParallelConfig(pair_ctas=3))
    factory = factories.NcclFactory(None, Channels(), torch.device("cpu"), wraps=True, ctas=ctas)
    factory.comm("tp", (4, 5), 5)
    factory.pipe("pp", (1, 5, 9), 5)
    assert all(group.options.is_high_priority_stream for group in made)
    assert {group.options.config.blocking for group in made} == {1}
    limits = [(group.size, group.options.config.max_ctas) for group in made]
    assert limits == [(2, -1), (3, -1), *[(2, 3)] * 4]


def test_each_pair_of_stages_is_connected_by_a_message_in_its_own_direction(
    made: list[FakeNccl], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else NCCL connects in the first message of a step, where the host waits for its peer: two
    stages that each post a receive ahead would wait for ever."""
    named: list[str] = []
    monkeypatch.setattr(factories._dist, "PrefixStore", lambda name, _: named.append(name))
    ends: dict[str, list[tuple[str, int]]] = {}
    for rank in (1, 5, 9):
        made.clear()
        named.clear()
        factory = factories.NcclFactory(None, Channels(), torch.device("cpu"), wraps=True)
        factory.pipe("pp", (1, 5, 9), rank)
        for name, group in zip(named, made, strict=True):
            ends.setdefault(name, []).extend(group.messages)
    whole = ends.pop(named[0])
    assert whole == [], "the collectives of the axis need none"
    assert len(ends) == 6
    assert all(
        sorted(messages) == [("recv", 0), ("send", 1)]
        or sorted(messages) == [("recv", 1), ("send", 0)]
        for messages in ends.values()
    )
    upward = [name for name, messages in ends.items() if ("send", 1) in messages]
    assert all("-True-" in name for name in upward) and len(upward) == 3


def test_no_operation_is_late_for_torch_and_its_watchdog_does_not_sleep(
    made: list[FakeNccl], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive that is posted ahead is as old as the step, and the watchdog holds a lock of every
    collective while it sleeps; the monitor and the driver judge what is late."""
    for name in device.ENVIRONMENT:
        monkeypatch.delenv(name)
    nccl_group(None, 0, 1, torch.device("cpu"))
    assert made[0].options._timeout >= timedelta(days=30)
    assert os.environ["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] == "1"
    assert os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "0"


class Event:
    """Becomes ready because an abort has ended the kernel before it."""

    def __init__(self, channels: Channels) -> None:
        self._channels, self._is_recorded = channels, False

    def record(self) -> None:
        self._is_recorded = True

    def query(self) -> bool:
        assert self._is_recorded
        self._channels.abort()
        return True


class OnDevice(torch.Tensor):
    """A tensor that says it is on a GPU."""

    device = torch.device("cuda", 0)  # type: ignore[assignment]


def test_what_became_ready_by_an_abort_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such values are garbage, and one of them says which snapshot all ranks have sealed."""
    channels, empty = Channels(), torch.empty

    def pageable(*args: Any, pin_memory: bool, **kind: Any) -> torch.Tensor:
        assert pin_memory
        return empty(*args, **kind)

    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(channels))
    monkeypatch.setattr(torch, "empty", pageable)
    values = torch.tensor([1.0, 2.0]).as_subclass(OnDevice)
    with pytest.raises(Aborted):
        read_when_ready(values, channels)


def test_the_policy_of_thread_blocks_is_passed_where_torch_has_it(made: list[FakeNccl]) -> None:
    efficient = Ctas.of(ParallelConfig(cta_policy="efficiency"))
    with capture_logs() as logs:
        nccl_group(None, 0, 1, torch.device("cpu"), ctas=efficient)
    assert not hasattr(made[0].options.config, "cta_policy")
    assert [line["ignored"] for line in logs] == ["efficiency"]
    newer = SimpleNamespace(cta_policy=-1, max_ctas=-1)
    Ctas().put_into(newer, is_pair=False)
    assert newer == SimpleNamespace(cta_policy=-1, max_ctas=-1), "NCCL's own choice"
    efficient.put_into(newer, is_pair=True)
    assert newer == SimpleNamespace(cta_policy=1, max_ctas=4)


def test_a_build_that_stays_inside_nccl_after_an_abort_gives_the_process_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that is lost while communicators are made can leave the thread in accept()."""
    inside, go = threading.Event(), threading.Event()

    def stuck(*_: Any, **__: Any) -> None:
        inside.set()
        go.wait(60)
        raise RuntimeError("connection refused")

    monkeypatch.setattr(factories, "nccl_group", stuck)
    monkeypatch.setattr(groups, "STUCK_LIMIT_S", 0.05)
    channels = Channels()
    threading.Thread(target=lambda: inside.wait(30) and channels.abort(), daemon=True).start()
    with pytest.raises(StuckTransport, match="generation 7") as raised:
        groups.build(
            7,
            Grid(dp=2),
            0,
            host="127.0.0.1",
            announce=lambda _: None,
            lookup=lambda: pytest.fail("rank 0 has the store"),
            channels=channels,
            timeout_s=20.0,
            device=torch.device("cuda"),
        )
    assert breaks_device(raised.value)
    go.set()
    channels.close()


def test_joining_on_a_gpu_has_a_limit_of_its_own() -> None:
    """Eight processes that load CUDA's libraries from a shared disk need more than a collective."""
    for given, wanted in (({}, 120.0), ({"join_timeout_s": 600.0}, 600.0)):
        run = {"train": {"device": "gpu"}, "recovery": given}
        assert from_dict(RunConfig, run).limits.join_timeout_s == wanted
    assert from_dict(RunConfig, {"train": {"device": "cpu"}}).limits.join_timeout_s == 60.0


def test_a_store_of_gpus_waits_longer_while_members_join_than_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits_s = []

    class Factory:
        def __init__(self, store: StoreClient, *_: Any, **__: Any) -> None:
            limits_s.append(store.timeout_s)

        def comm(self, *_: Any) -> Comm:
            return SingleRank()

        def pipe(self, *_: Any) -> tuple[Comm, PipeComm]:
            return SingleRank(), PipeComm()

    monkeypatch.setattr(groups, "NcclFactory", Factory)
    channels = Channels()
    made = groups.build(
        0,
        Grid(dp=2),
        0,
        host="127.0.0.1",
        announce=lambda _: None,
        lookup=lambda: pytest.fail("rank 0 has the store"),
        channels=channels,
        timeout_s=20.0,
        join_timeout_s=120.0,
        device=torch.device("cuda"),
    )
    assert made._store is not None
    assert [*limits_s, made._store.timeout_s] == [120.0, 20.0]
    made.release()
    channels.close()


def test_ranks_take_devices_in_turn_also_when_there_are_more_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for name in device.ENVIRONMENT:
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
