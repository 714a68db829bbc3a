"""A pipeline runs over communicators that, as NCCL's, keep strictly to the order issued; see
``services.trainer.tests.pipeline.nccl_model``."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import headway.trainer.pipeline.executor as pipeline_module
import pytest
import torch
from headway.common.plan.schedule import generate, lower
from headway.common.plan.schedule.actions import RECEIVES, Action, Kind
from headway.trainer.pipeline.executor import MAX_UNFINISHED_SENDS, Pipeline
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.tests.pipeline.nccl_devices import carry_out
from services.trainer.tests.pipeline.nccl_model import (
    SHAPES,
    Factory,
    FakeChunk,
    Ticket,
    Trace,
    Watched,
    by_lane,
    by_pair,
    issue,
    lowered,
    passes_of,
)


@pytest.mark.parametrize(("name", "pp", "vp"), SHAPES)
@pytest.mark.parametrize("overlap", [True, False])
def test_a_step_ends_over_a_communicator_for_each_pair(
    name: str, pp: int, vp: int, overlap: bool
) -> None:
    """Catches a lane, or both directions of a pair, in one communicator, and a send
    ordered behind a receive."""
    traces, _ = issue(lowered(name, pp, vp), by_pair, overlap=overlap)
    assert carry_out(traces) == 0


@settings(max_examples=150)
@given(
    st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved", "forward-only"]),
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
    vp = vp if name in ("interleaved", "forward-only") else 1 + (name == "zb-v")
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
@pytest.mark.parametrize(("wraps", "is_v"), [(False, False), (True, False), (False, True)])
def test_ranks_never_wait_for_each_other_while_they_make_their_communicators(
    pp: int, wraps: bool, is_v: bool
) -> None:
    made = []
    for rank in range(pp):
        factory = Factory(Trace(), wraps=wraps, is_v=is_v)
        factory.pipe("pp", range(pp), rank)
        made.append(deque(factory.made))
    names = {entry[0] for queue in made for entry in queue}
    assert len(names) == 1 + 2 * ((pp - 1) * (1 + is_v) + wraps)  # and one for collectives
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
    assert rounds <= 7 + 2 * is_v, "the pairs of a long pipeline are made side by side"


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
