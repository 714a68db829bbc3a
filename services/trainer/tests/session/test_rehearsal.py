"""After its rehearsal a rank launches nothing for the first time.

Every rank trains alone here, over groups that write messages down and send nothing; a dispatch mode
sees each operation of torch with the types of its arguments, which is what chooses a kernel.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from headway.common.config import from_dict
from headway.common.plan.grid import AXES
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.every_rank import EveryRank
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Aborted, Comm, Ticket
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import borders_of
from headway.trainer.model.kernels.varlen import MIN_MEAN_LENGTH
from headway.trainer.model.rehearsal import Echo
from headway.trainer.session import rehearsal
from headway.trainer.session import session as generation
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.rehearsal import EchoPipe, EchoWorld
from headway.trainer.session.session import Session
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.snapshot import Snapshots
from torch.utils._python_dispatch import TorchDispatchMode

GRIDS = [
    ("gpipe", 2, 1),
    ("1f1b", 2, 1),
    ("1f1b", 4, 1),
    ("1f1b", 8, 1),
    ("zb-h1", 4, 1),
    ("zb-v", 4, 2),
    ("interleaved", 2, 2),
    ("interleaved", 4, 2),
]


def config_of(
    schedule: str, pp: int, vp: int, tp: int = 1, dp: int = 1, replay_every: int = 0, **train: Any
) -> RunConfig:
    return from_dict(
        RunConfig,
        {
            "model": {"layers": 8, "hidden": 16, "heads": 2, "vocab_size": 64, "seq_len": 8}
            | ({"document_end": 3} if schedule == "1f1b" else {}),
            "parallel": {"schedule": schedule, "pp": pp, "vp": vp, "tp": tp, "dp": dp},
            "health": {"replay_every": replay_every},
            "launch": {"ranks_per_node": pp * tp * dp},
            "train": {"global_batch_size": 6 * pp * dp, "micro_batch_size": 1, "dtype": "fp32"}
            | {"eval_batches": 1, "steps": 5}
            | train,
        },
    )


class Launches(TorchDispatchMode):
    """Which operations have run, by name and by the types of the tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[Any, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kinds = tuple(arg.dtype for arg in args if isinstance(arg, torch.Tensor))
        self.seen.add((str(func), kinds))
        return func(*args, **(kwargs or {}))


class Posting(EchoPipe):
    """Notes what had been launched before the rank's first message."""

    def __init__(self, launches: Launches, rank: int, size: int, *, is_v: bool) -> None:
        super().__init__(rank, size, is_v=is_v)
        self.launches, self.before = launches, set[tuple[Any, ...]]()

    def recv(self, *args: Any) -> Ticket:
        self.before = self.before or set(self.launches.seen)
        return super().recv(*args)

    def send(self, *args: Any) -> Ticket:
        self.before = self.before or set(self.launches.seen)
        return super().send(*args)


class Steps(StepHooks):
    def __init__(self, launches: Launches | None = None) -> None:
        self.losses: list[float] = []
        self.skipped = False
        self.seen = set[tuple[Any, ...]]()
        self._launches = launches or Launches()

    def on_step(self, result: StepResult) -> None:
        self.losses.append(result.loss)
        self.skipped |= result.skipped
        self.seen = set(self._launches.seen)


def launched_late(config: RunConfig, rank: int, *, rehearses: bool) -> set[tuple[Any, ...]]:
    """What the rank launches for the first time once it has issued its first message."""
    place, parallel, launches = config.parallel.grid.coordinates(rank), config.parallel, Launches()
    pipe = Posting(launches, place.pp, parallel.pp, is_v=parallel.is_v)
    sizes = {
        "tp": (place.tp, parallel.tp),
        "pp": (place.pp, parallel.pp),
        "dp": (place.dp, parallel.dp),
    }
    comms: Any = {axis: Echo(*sizes[axis]) for axis in AXES}
    world: list[Comm] = list(comms.values())
    every = EchoWorld(world, rank, parallel.world_size)
    steps = Steps(launches)
    session = Session(config, rank, data_factory=synthetic(config, rank), rehearses=rehearses)
    session.join(Groups(0, Channels(), comms, pipe, every))
    with launches:
        session.load("init")
        session.run(steps, 2)
    session.leave()
    assert pipe.before, "it has issued messages"
    assert not steps.skipped
    return steps.seen - pipe.before


@pytest.mark.parametrize(("schedule", "pp", "vp"), GRIDS)
def test_nothing_is_launched_for_the_first_time_once_a_message_is_posted(
    schedule: str, pp: int, vp: int
) -> None:
    config = config_of(schedule, pp, vp)
    for rank in sorted({0, pp // 2, pp - 1}):
        assert launched_late(config, rank, rehearses=True) == set(), f"rank {rank}"


@pytest.mark.parametrize(("schedule", "pp", "vp"), [("1f1b", 2, 1), ("interleaved", 2, 2)])
def test_nor_is_anything_with_replicas_that_compare_their_gradients(
    schedule: str, pp: int, vp: int
) -> None:
    config = config_of(schedule, pp, vp, dp=2, replay_every=2)
    for rank in (0, config.parallel.world_size - 1):
        assert launched_late(config, rank, rehearses=True) == set(), f"rank {rank}"


def test_a_rehearsed_send_keeps_its_tensor_as_one_to_a_late_peer_does() -> None:
    tensor = torch.zeros(3)
    seen = weakref.ref(tensor)
    ticket = EchoPipe(0, 2).send("forward", tensor, 1, 0)
    del tensor
    assert seen() is not None and not ticket.done()
    del ticket
    assert seen() is None


def test_without_a_rehearsal_the_backward_is_loaded_behind_posted_receives() -> None:
    """The evaluation before the first step loads the forward kernels only."""
    late = launched_late(config_of("1f1b", 2, 1), 0, rehearses=False)
    assert any("fused_adamw" in name for name, _ in late)
    assert len(late) > 10


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_a_rehearsal_changes_no_bit(optimizer: str) -> None:
    losses = []
    for rehearses in (False, True):
        config = from_dict(
            RunConfig,
            {
                "model": {"layers": 2, "hidden": 16, "heads": 2, "vocab_size": 64, "seq_len": 8},
                "train": {"global_batch_size": 4, "micro_batch_size": 1, "dtype": "fp32"},
                "optim": {"name": optimizer},
            },
        )
        session = Session(config, 0, data_factory=synthetic(config, 0), rehearses=rehearses)
        session.join(Groups.alone())
        session.load("init")
        steps = Steps()
        session.run(steps, 3)
        losses.append(steps.losses)
    assert losses[0] == losses[1] and len(losses[0]) == 3


def test_a_fence_ends_a_rehearsal_and_the_next_generation_begins_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, rehearsed = config_of("1f1b", 2, 1), []
    session = Session(config, 0, data_factory=synthetic(config, 0), rehearses=True)
    true = rehearsal.rehearse_step
    monkeypatch.setattr(
        rehearsal, "rehearse_step", lambda *args: (rehearsed.append(1), true(*args))
    )

    def join(channels: Channels) -> None:
        comms: Any = {axis: Echo(0, 2 if axis == "pp" else 1) for axis in AXES}
        every = EveryRank(list(comms.values()), 0, 2)
        session.join(Groups(0, channels, comms, EchoPipe(0, 2), every))

    fenced = Channels()
    join(fenced)
    with pytest.raises(Aborted):
        session.load("init", progress=lambda _: (fenced.abort(), fenced.check()))
    session.leave()
    for _ in range(2):
        join(Channels())
        session.load("init")
        session.leave()
    assert len(rehearsed) == 2


@pytest.mark.parametrize(("device", "is_rehearsed"), [("cuda", True), ("cpu", False)])
def test_on_a_gpu_the_device_is_idle_and_memory_locked_before_anything_is_posted(
    device: str, is_rehearsed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, calls = config_of("1f1b", 1, 1), []
    session = Session(config, 0, data_factory=synthetic(config, 0), device=device)
    session.device = torch.device("cpu")  # what the GPU would do is not of interest here
    for owner, name in (
        (generation, "settle"),
        (rehearsal, "rehearse_step"),
        (FlatChunk, "renew"),
        (Snapshots, "lock"),
        (Snapshots, "forget"),
    ):
        monkeypatch.setattr(owner, name, noting(calls, name, getattr(owner, name)))
    session.join(Groups.alone())
    calls.clear()
    session.load("init")
    session.leave()
    session.join(Groups.alone())
    session.load("init")
    first = ["rehearse_step"] * is_rehearsed + ["lock", "forget"]
    assert calls == [*first, "settle", "renew", "lock", "forget"]


def noting(calls: list[str], name: str, true: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        calls.append(name)
        return None if name == "rehearse_step" else true(*args)

    return call


def test_documents_of_every_length_that_chooses_a_kernel_are_rehearsed() -> None:
    config = from_dict(RunConfig, {"model": {"document_end": 0, "seq_len": 256}})
    source = rehearsal._Zeros(rehearsal._short(config), 0)
    lengths = set[int]()
    for _ in range(rehearsal._short(config).num_micro_batches):
        [row, *_] = borders_of(source.next().tokens, 0) or ()
        lengths.add(256 // (len(row) - 1))
    assert {256, 128} <= lengths and min(lengths) < MIN_MEAN_LENGTH
