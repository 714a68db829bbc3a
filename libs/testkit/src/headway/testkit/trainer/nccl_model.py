"""A model of NCCL's streams: communicators keep strictly to the order issued.

The real ``Pipeline`` issues a step's messages; the model then carries them out. Each rank has one
compute stream and one stream per communicator. A message starts when it is the first of its
communicator at both ends and both compute streams have come to where it was issued; a computation
starts when the messages waited for before it are done. A call that loads a kernel, locks, gets or
frees memory keeps the host until all that it has issued is done.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from headway.common.plan.schedule import forward_only, generate, lower
from headway.common.plan.schedule.actions import COMPUTE, RECEIVES, Action, Kind, Schedule
from headway.trainer.batches import MicroBatch
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.factories import LANES, NcclFactory
from headway.trainer.comm.p2p import PipeComm
from headway.trainer.model.chunk import Forward
from headway.trainer.pipeline import Pipeline
from headway.trainer.recorder import NoRecorder
from headway.trainer.rehearsal import EchoPipe

SHAPES = [
    (name, pp, vp)
    for name, vps in (
        ("gpipe", (1,)),
        ("1f1b", (1,)),
        ("zb-h1", (1,)),
        ("interleaved", (2, 3)),
        ("forward-only", (1, 3)),
    )
    for pp in (2, 3, 4, 8)
    for vp in vps
]


@dataclass(eq=False)
class Message:
    """One end of a message: what a rank issued on a communicator, behind ``after`` waits
    of its compute stream."""

    comm: str
    is_send: bool
    peer: int
    tag: int
    after: int
    behind: int = 0
    """Number of such calls before it."""


@dataclass
class Trace:
    """What one rank issued, in order, and what its compute stream waits for, in order."""

    issued: dict[str, deque[Message]] = field(default_factory=lambda: defaultdict(deque))
    waits: list[Message] = field(default_factory=list)
    gates: list[list[Message]] = field(default_factory=list)
    """What was issued before each call in which the host waits for the device."""


class Ticket:
    """Like a ticket over NCCL: the compute stream waits, the caller does not."""

    def __init__(self, trace: Trace, message: Message) -> None:
        self._trace, self._message = trace, message

    def done(self) -> bool:
        """Never known to be done: the worst case for a rank that waits for old sends."""
        return False

    def wait(self) -> None:
        self._trace.waits.append(self._message)


class Recorded:
    """A communicator of which ``members`` are the pipeline ranks; writes down what is issued."""

    def __init__(self, trace: Trace, name: str, members: tuple[int, ...]) -> None:
        self._trace, self._name, self._members = trace, name, members

    def send(self, _: torch.Tensor, peer: int, tag: int) -> Ticket:
        return self._issue(True, peer, tag)

    def recv(self, tensor: torch.Tensor, peer: int, tag: int) -> Ticket:
        tensor.zero_()
        return self._issue(False, peer, tag)

    def _issue(self, is_send: bool, peer: int, tag: int) -> Ticket:
        waits, gates = len(self._trace.waits), len(self._trace.gates)
        message = Message(self._name, is_send, self._members[peer], tag, waits, gates)
        self._trace.issued[self._name].append(message)
        return Ticket(self._trace, message)


class Factory(NcclFactory):
    """Makes recorded communicators, by the names and members, and in the order, of the real one."""

    def __init__(self, trace: Trace, *, wraps: bool) -> None:
        super().__init__(None, Channels(), torch.device("cpu"), wraps=wraps)
        self._trace = trace
        self.made: list[tuple[str, tuple[int, ...]]] = []

    def comm(self, name: str, ranks: Any, rank: int, **_: Any) -> Any:
        assert rank in ranks
        self.made.append((name, tuple(ranks)))
        return Recorded(self._trace, name, tuple(ranks))


def by_pair(trace: Trace, rank: int, schedule: Schedule) -> PipeComm:
    return Factory(trace, wraps=schedule.vp > 1).pipe("pp", range(schedule.pp), rank)[1]


def by_lane(trace: Trace, rank: int, schedule: Schedule) -> PipeComm:
    """One communicator for a lane of the whole pipeline."""
    members = tuple(range(schedule.pp))
    lanes: Any = {lane: Recorded(trace, str(lane), members) for lane in LANES}
    return PipeComm(lanes, rank, schedule.pp)


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

    def _record(self, action: Action, flags: int = 0, nbytes: int = 0) -> Any:
        if action.kind in COMPUTE:
            self.unfinished = max(self.unfinished, *map(len, self._sent.values()))
        return super()._record(action, flags, nbytes)


def issue(schedule: Schedule, mapping: Any, *, overlap: bool = True) -> tuple[list[Trace], int]:
    """Every rank's trace of one step, and how many receives were late over all ranks."""
    passes = [(trace, late) for trace, late, _ in passes_of(schedule, mapping, overlap=overlap)]
    return [trace for trace, _ in passes], sum(late for _, late in passes)


def passes_of(
    schedule: Schedule, mapping: Any, *, overlap: bool = True
) -> Iterator[tuple[Trace, int, int]]:
    """Of every rank: its trace, its late receives, and the most sends of one direction left."""
    handlers: dict[Kind, Any] = {kind: lambda *_: None for kind in Kind if kind >= Kind.ALL_GATHER}
    for rank, actions in enumerate(schedule.ranks):
        trace = Trace()
        chunks: Any = [
            FakeChunk(c * schedule.pp + rank, schedule.num_stages) for c in range(schedule.vp)
        ]
        pipeline = Watched(
            actions,
            chunks,
            mapping(trace, rank, schedule),
            NoRecorder(),
            step=0,
            micro_batch_size=1,
            loss_scale=1.0,
            train=not schedule.forward_only,
            overlap=overlap,
            handlers=handlers | dict.fromkeys(RECEIVES, Watched._receive),
            check=lambda: None,
            before_compute=lambda _: None,
        )
        pipeline.batches = [MicroBatch(tokens=torch.zeros(1))] * schedule.num_micro_batches
        pipeline.run()
        assert len(trace.waits) == sum(len(queue) for queue in trace.issued.values())
        yield trace, pipeline.late, pipeline.unfinished


def carry_out(traces: list[Trace]) -> int:
    """Carry out what can be; the number of messages that never start."""
    done: set[Message] = set()

    def is_issued(message: Message, trace: Trace) -> bool:
        gates = trace.gates[: message.behind]
        return all(earlier in done for gate in gates for earlier in gate)

    passed = [0] * len(traces)  # waits that a rank's compute stream has behind it
    moved = True
    while moved:
        moved = False
        for rank, trace in enumerate(traces):
            while passed[rank] < len(trace.waits) and trace.waits[passed[rank]] in done:
                passed[rank] += 1
                moved = True
            for name, queue in trace.issued.items():
                if not queue or not queue[0].is_send:
                    continue
                send, peer = queue[0], queue[0].peer
                other = traces[peer].issued[name]
                if not other or other[0].is_send or other[0].peer != rank:
                    continue
                receive = other[0]
                issued = is_issued(send, traces[rank]) and is_issued(receive, traces[peer])
                if issued and passed[rank] >= send.after and passed[peer] >= receive.after:
                    assert send.tag == receive.tag, (
                        "NCCL knows no tags: the order must match messages"
                    )
                    done |= {queue.popleft(), other.popleft()}
                    moved = True
    return sum(len(queue) for trace in traces for queue in trace.issued.values())


def lowered(name: str, pp: int, vp: int, groups: int = 3) -> Schedule:
    if name == "forward-only":
        return lower(forward_only(pp=pp, vp=vp, num_micro_batches=groups * pp))
    return lower(generate(name, pp=pp, vp=vp, num_micro_batches=groups * pp))


class Loading(FakeChunk):
    """Its first computation of a kind in ``late`` stays in the call until all that the rank has
    issued so far is done."""

    def __init__(self, stage: int, stages: int, trace: Trace, late: set[str]) -> None:
        super().__init__(stage, stages)
        self._trace, self._late = trace, late

    def load(self, kind: str) -> None:
        """The same for what is not a computation of the chunk."""
        if kind in self._late:
            self._late.discard(kind)
            self._trace.gates.append(
                [message for queue in self._trace.issued.values() for message in queue]
            )

    def forward(self, *args: Any, **kind: Any) -> Any:
        self.load("forward")
        return super().forward(*args, **kind)

    def backward(self, *args: Any, **kind: Any) -> torch.Tensor | None:
        self.load("backward")
        return super().backward(*args, **kind)

    def backward_weight(self, _: Any) -> None:
        self.load("weight")


def step_of(schedule: Schedule, late: set[str], *, overlap: bool, rehearsed: bool) -> list[Trace]:
    """Every rank's trace of a step; ``rehearsed``: after a pass over messages that are there."""
    traces = []
    for rank, actions in enumerate(schedule.ranks):
        trace, unloaded = Trace(), set(late)
        chunks: Any = [
            Loading(c * schedule.pp + rank, schedule.num_stages, trace, unloaded)
            for c in range(schedule.vp)
        ]
        handlers: dict[Kind, Any] = {
            kind: lambda *_: None for kind in Kind if kind >= Kind.ALL_GATHER
        }
        handlers[Kind.OPTIMIZER] = lambda *_, chunks=chunks: chunks[0].load("optimizer")
        pipes: list[PipeComm] = [EchoPipe(rank, schedule.pp)] if rehearsed else []
        for pipe in [*pipes, by_pair(trace, rank, schedule)]:
            pipeline = Pipeline(
                actions,
                chunks,
                pipe,
                NoRecorder(),
                step=0,
                micro_batch_size=1,
                loss_scale=1.0,
                train=not schedule.forward_only,
                overlap=overlap,
                handlers=handlers,
                check=lambda: None,
                before_compute=lambda _: None,
            )
            pipeline.batches = [MicroBatch(tokens=torch.zeros(1))] * schedule.num_micro_batches
            pipeline.run()
        traces.append(trace)
    return traces
