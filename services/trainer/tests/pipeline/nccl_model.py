"""A model of NCCL's streams: communicators keep strictly to the order issued.

The real ``Pipeline`` issues a step's messages here, rank by rank; ``nccl_devices`` carries them
out. Each rank has one compute stream and one stream per communicator. A message starts when it is
the first of its communicator at both ends and both compute streams have come to where it was
issued; a computation starts when the messages waited for before it are done.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from headway.common.plan.schedule import forward_only, generate, lower
from headway.common.plan.schedule.actions import COMPUTE, RECEIVES, Action, Kind, Schedule
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.factories import LANES, NcclFactory
from headway.trainer.comm.p2p import PipeComm
from headway.trainer.data.batches import MicroBatch
from headway.trainer.device.recorder import NoRecorder
from headway.trainer.model.chunk import Forward
from headway.trainer.pipeline.executor import Pipeline

SHAPES = [
    (name, pp, vp)
    for name, vps in (
        ("gpipe", (1,)),
        ("1f1b", (1,)),
        ("zb-h1", (1,)),
        ("zb-v", (2,)),
        ("interleaved", (2, 3)),
        ("forward-only", (1, 3)),
    )
    for pp in (2, 3, 4, 8)
    for vp in vps
]


@dataclass(eq=False)
class Message:
    """One end of a message that a rank issued on a communicator.

    It was issued behind ``after`` waits of the rank's compute stream.
    """

    comm: str
    is_send: bool
    peer: int
    tag: int
    after: int
    behind: int = 0
    """Number of calls before it in which the host waited for an idle device."""


@dataclass
class Trace:
    """What one rank issued, in order, and what its compute stream waits for, in order.

    An event is what a host does: it issues, has its stream wait, computes, or checks the fence.
    """

    issued: dict[str, deque[Message]] = field(default_factory=lambda: defaultdict(deque))
    waits: list[Message] = field(default_factory=list)
    gates: list[list[Message]] = field(default_factory=list)
    """What was issued before each call in which the host waits for an idle device."""
    channels: Channels = field(default_factory=Channels)
    abort_after: int = -1
    """The event after which the generation is fenced."""
    num_events: int = 0

    @property
    def messages(self) -> list[Message]:
        """All that was issued."""
        return [message for queue in self.issued.values() for message in queue]

    def event(self) -> None:
        """Count one more."""
        self.num_events += 1
        if self.num_events == self.abort_after:
            self.channels.abort()

    def check(self) -> None:
        """Raise ``Aborted`` if the generation was fenced."""
        self.channels.check()
        self.event()


class Ticket:
    """Like a ticket over NCCL: the compute stream waits, the caller does not."""

    collective = 0

    def __init__(self, trace: Trace, message: Message) -> None:
        self._trace, self._message = trace, message

    def done(self) -> bool:
        """Never known to be done: the worst case for a rank that waits for old sends."""
        return False

    def wait(self) -> None:
        self._trace.channels.check()
        self._trace.waits.append(self._message)
        self._trace.event()


class Recorded:
    """A communicator of which ``members`` are the pipeline ranks; writes down what is issued."""

    def __init__(self, trace: Trace, name: str, members: tuple[int, ...]) -> None:
        self._trace, self._name, self._members = trace, name, members

    def send(self, _: torch.Tensor, peer: int, tag: int, *__: Any) -> Ticket:
        return self._issue(True, peer, tag)

    def recv(self, tensor: torch.Tensor, peer: int, tag: int, *_: Any) -> Ticket:
        tensor.zero_()
        return self._issue(False, peer, tag)

    def _issue(self, is_send: bool, peer: int, tag: int) -> Ticket:
        self._trace.channels.check()
        waits, gates = len(self._trace.waits), len(self._trace.gates)
        message = Message(self._name, is_send, self._members[peer], tag, waits, gates)
        self._trace.issued[self._name].append(message)
        self._trace.event()
        return Ticket(self._trace, message)


class Factory(NcclFactory):
    """Makes recorded communicators, by the names and members, and in the order, of the real one."""

    def __init__(self, trace: Trace, *, wraps: bool = False, is_v: bool = False) -> None:
        super().__init__(None, Channels(), torch.device("cpu"), wraps=wraps, is_v=is_v)
        self._trace = trace
        self.made: list[tuple[str, tuple[int, ...]]] = []

    def comm(self, name: str, ranks: Any, rank: int, *_: Any, **__: Any) -> Any:
        assert rank in ranks
        self.made.append((name, tuple(ranks)))
        return Recorded(self._trace, name, tuple(ranks))

    def _pair(self, name: str, ranks: Any, rank: int, **_: Any) -> Any:
        return self.comm(name, ranks, rank)


def by_pair(trace: Trace, rank: int, schedule: Schedule) -> PipeComm:
    wraps = schedule.vp > 1 and not schedule.is_v
    factory = Factory(trace, wraps=wraps, is_v=schedule.is_v)
    return factory.pipe("pp", range(schedule.pp), rank)[1]


def by_lane(trace: Trace, rank: int, schedule: Schedule) -> PipeComm:
    """One communicator for a lane of the whole pipeline."""
    members = tuple(range(schedule.pp))
    lanes: Any = {lane: Recorded(trace, str(lane), members) for lane in LANES}
    return PipeComm(lanes, rank, schedule.pp, is_v=schedule.is_v)


class Precision:
    param_dtype = torch.float32


class FakeChunk:
    """Computes nothing, in the right shape."""

    device, precision = torch.device("cpu"), Precision()

    def __init__(self, stage: int, stages: int) -> None:
        self.is_first, self.is_last = stage == 0, stage == stages - 1

    def activation_shape(self, size: int) -> tuple[int, ...]:
        return (size,)

    def forward(self, *_: Any, **__: Any) -> Any:
        return Forward(torch.zeros(()) if self.is_last else torch.zeros(1), None)

    def backward(self, *_: Any, **__: Any) -> torch.Tensor | None:
        return None if self.is_first else torch.zeros(1)

    def backward_weight(self, _: Any) -> None:
        pass


class Watched(Pipeline):
    """Counts the receives that no look-ahead had posted where they stand, and unfinished sends."""

    late = unfinished = 0

    def _receive(self, action: Action) -> None:
        self.late += self._num_posted == self._num_reached
        super()._receive(action)

    def _record(self, action: Action, flags: int = 0, *sizes: int, **names: int) -> Any:
        if action.kind in COMPUTE:
            self.unfinished = max([self.unfinished, *map(len, self._sent.values())])
        return super()._record(action, flags, *sizes, **names)


def issue(schedule: Schedule, mapping: Any, *, overlap: bool = True) -> tuple[list[Trace], int]:
    """Every rank's trace of one step, and how many receives were late over all ranks."""
    passes = [(trace, late) for trace, late, _ in passes_of(schedule, mapping, overlap=overlap)]
    return [trace for trace, _ in passes], sum(late for _, late in passes)


def passes_of(
    schedule: Schedule, mapping: Any, *, overlap: bool = True
) -> Iterator[tuple[Trace, int, int]]:
    """Yield each rank's trace, late receives, and most sends left of one kind to one peer."""
    for rank, _ in enumerate(schedule.ranks):
        trace = Trace()
        chunks: Any = [
            FakeChunk(stage, schedule.num_stages)
            for stage in schedule.stage_map.stages_of(rank, schedule.vp)
        ]
        pipe = mapping(trace, rank, schedule)
        pipeline = pass_of(schedule, rank, chunks, pipe, trace, overlap=overlap)
        pipeline.run()
        assert len(trace.waits) == len(trace.messages)
        yield trace, pipeline.late, pipeline.unfinished


def pass_of(
    schedule: Schedule,
    rank: int,
    chunks: Any,
    pipe: PipeComm,
    trace: Trace,
    *,
    overlap: bool,
    handlers: Mapping[Kind, Any] = MappingProxyType({}),
    **buckets: Any,
) -> Watched:
    """The pass of one rank; ``handlers`` of actions that are neither computations nor messages.

    ``buckets``: what ``Pipeline`` calls before and after buckets.
    """
    nothing: dict[Kind, Any] = {kind: lambda *_: None for kind in Kind if kind >= Kind.ALL_GATHER}
    pipeline = Watched(
        schedule.ranks[rank],
        chunks,
        pipe,
        NoRecorder(),
        step=0,
        micro_batch_size=1,
        loss_scale=1.0,
        train=not schedule.forward_only,
        overlap=overlap,
        handlers=nothing | dict.fromkeys(RECEIVES, Watched._receive) | dict(handlers),
        check=trace.check,
        **{"before_bucket": lambda *_: trace.event(), **buckets},
    )
    pipeline.batches = [MicroBatch(tokens=torch.zeros(1))] * schedule.num_micro_batches
    return pipeline


def lowered(name: str, pp: int, vp: int, groups: int = 3) -> Schedule:
    if name == "forward-only":
        return lower(forward_only(pp=pp, vp=vp, num_micro_batches=groups * pp))
    return lower(generate(name, pp=pp, vp=vp, num_micro_batches=groups * pp))
