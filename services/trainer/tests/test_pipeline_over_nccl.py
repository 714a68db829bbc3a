"""A pipeline runs over communicators that, as NCCL's, keep strictly to the order issued.

The real ``Pipeline`` issues a step's messages; a model then carries them out. Each rank has one
compute stream and one stream per communicator. A message starts when it is the first of its
communicator at both ends and both compute streams have come to where it was issued; a computation
starts when the messages waited for before it are done.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import headway.trainer.pipeline as pipeline_module
import pytest
import torch
from headway.common.plan.schedule import forward_only, generate, lower
from headway.common.plan.schedule.actions import COMPUTE, RECEIVES, Action, Kind, Schedule
from headway.trainer.batches import MicroBatch
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.factories import LANES, NcclFactory
from headway.trainer.comm.p2p import PipeComm
from headway.trainer.model.chunk import Forward
from headway.trainer.pipeline import MAX_UNFINISHED_SENDS, Pipeline
from headway.trainer.recorder import NoRecorder
from hypothesis import given, settings
from hypothesis import strategies as st

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


@dataclass
class Trace:
    """What one rank issued, in order, and what its compute stream waits for, in order."""

    issued: dict[str, deque[Message]] = field(default_factory=lambda: defaultdict(deque))
    waits: list[Message] = field(default_factory=list)


class Ticket:
    """Like a ticket over NCCL: the compute stream waits, the caller does not."""

    def __init__(self, trace: Trace, message: Message) -> None:
        self._trace, self._message = trace, message

    def done(self) -> bool:
        """Never known to be done: the worst case for whoever waits for old sends."""
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
        message = Message(self._name, is_send, self._members[peer], tag, len(self._trace.waits))
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
                if passed[rank] >= send.after and passed[peer] >= receive.after:
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


@pytest.mark.parametrize(("name", "pp", "vp"), SHAPES)
@pytest.mark.parametrize("overlap", [True, False])
def test_a_step_ends_over_a_communicator_for_each_pair(
    name: str, pp: int, vp: int, overlap: bool
) -> None:
    """Catches a lane, or both directions of a pair, in one communicator, and a send
    ordered behind a receive."""
    traces, _ = issue(lowered(name, pp, vp), by_pair, overlap=overlap)
    assert carry_out(traces) == 0


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["gpipe", "1f1b", "zb-h1", "interleaved", "forward-only"]),
    st.integers(2, 8),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_a_step_ends_however_few_sends_may_be_unfinished(
    name: str, pp: int, vp: int, groups: int, limit: int
) -> None:
    """Every send waits for its receive and none is ever seen to be done, so each limit waits as
    often as it can: what ends here ends over any transport."""
    vp = vp if name in ("interleaved", "forward-only") else 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline_module, "MAX_UNFINISHED_SENDS", limit)
        found = list(passes_of(lowered(name, pp, vp, groups), by_pair))
    assert carry_out([trace for trace, _, _ in found]) == 0
    assert max(unfinished for _, _, unfinished in found) <= limit


@pytest.mark.parametrize(("name", "pp", "vp"), SHAPES)
def test_no_rank_computes_on_with_more_than_four_sends_unfinished(
    name: str, pp: int, vp: int
) -> None:
    """Catches tensors that are kept to the end of the step, in validation passes too."""
    most = [unfinished for _, _, unfinished in passes_of(lowered(name, pp, vp, 8), by_pair)]
    assert max(most) == MAX_UNFINISHED_SENDS == 4


def test_a_send_that_is_done_is_let_go_of_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ticket, "done", lambda _: True)
    for name in ("gpipe", "forward-only"):
        most = [unfinished for _, _, unfinished in passes_of(lowered(name, 4, 1, 8), by_pair)]
        assert most == [0] * 4


def test_an_output_is_freed_while_the_tape_of_its_forward_is_still_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches a forward that keeps its output: with GPipe that is one more activation for each
    micro-batch, held until its backward."""
    outputs: list[weakref.ref[torch.Tensor]] = []
    num_living: list[int] = []
    forward, backward = FakeChunk.forward, FakeChunk.backward

    def watched_forward(chunk: FakeChunk, *_: Any, **__: Any) -> Any:
        made = forward(chunk)
        outputs.append(weakref.ref(made.output))
        return made

    def counting_backward(chunk: FakeChunk, *_: Any, **__: Any) -> torch.Tensor | None:
        num_living.append(sum(output() is not None for output in outputs))
        return backward(chunk)

    monkeypatch.setattr(FakeChunk, "forward", watched_forward)
    monkeypatch.setattr(FakeChunk, "backward", counting_backward)
    schedule = lowered("gpipe", pp=2, vp=1)
    issue(schedule, by_pair)
    assert len(outputs) == 2 * schedule.num_micro_batches
    assert num_living == [0] * len(outputs)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_a_limit_on_sends_hangs_where_receives_wait_for_their_use(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why a receive is posted where it stands at the latest: no look-ahead is always enough."""

    def take(pipeline: Watched, kind: Kind, consumer: Action) -> torch.Tensor:
        key = (kind, consumer.chunk, consumer.micro_batch)
        while key not in pipeline._posted and key not in pipeline._inbox:
            pipeline._post()
        return Pipeline._take(pipeline, kind, consumer)

    monkeypatch.setattr(pipeline_module, "MAX_UNFINISHED_SENDS", 0)
    monkeypatch.setattr(pipeline_module, "POSTED_AHEAD", -1)
    monkeypatch.setattr(Watched, "_receive", lambda *_: None)
    monkeypatch.setattr(Watched, "_take", take)
    traces, _ = issue(lowered(name, 4, 1), by_pair)
    assert carry_out(traces) > 0


@pytest.mark.parametrize(
    ("name", "pp", "vp"),
    [shape for shape in SHAPES if shape[1] > 2 and shape[0] not in ("gpipe", "forward-only")],
)
def test_a_step_hangs_over_a_communicator_for_each_lane(name: str, pp: int, vp: int) -> None:
    """Why there are pairs; also shows that the model can find a deadlock."""
    traces, _ = issue(lowered(name, pp, vp), by_lane)
    assert carry_out(traces) > 0


@pytest.mark.parametrize("pp", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("wraps", [False, True])
def test_ranks_never_wait_for_each_other_while_they_make_their_communicators(
    pp: int, wraps: bool
) -> None:
    made = []
    for rank in range(pp):
        factory = Factory(Trace(), wraps=wraps)
        factory.pipe("pp", range(pp), rank)
        made.append(deque(factory.made))
    names = {entry[0] for queue in made for entry in queue}
    assert len(names) == 1 + 2 * (pp - 1 + wraps)  # and one for collectives
    rounds = 0
    while any(made):
        ready = {
            queue[0]
            for queue in made
            if queue and all(made[m] and made[m][0] == queue[0] for m in queue[0][1])
        }
        assert ready, "each rank waits for another"
        for queue in made:
            if queue and queue[0] in ready:
                queue.popleft()
        rounds += 1
    assert rounds <= 7, "the pairs of a long pipeline are made side by side"


@pytest.mark.parametrize("vp", [2, 4])
def test_a_deep_pipeline_needs_receives_beyond_those_posted_ahead_and_they_are_there(
    vp: int,
) -> None:
    """Catches receives that the look-ahead alone posts."""
    schedule = lower(generate("interleaved", pp=16, vp=vp, num_micro_batches=32))
    traces, late = issue(schedule, by_pair)
    num_receives = sum(action.kind in RECEIVES for order in schedule.ranks for action in order)
    assert sum(not m.is_send for trace in traces for m in trace.waits) == num_receives
    assert carry_out(traces) == 0
    assert late > 0
