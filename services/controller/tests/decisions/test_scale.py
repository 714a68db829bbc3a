"""A beat costs the same work at any number of nodes;
counted in function calls, which no load changes."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from headway.common.decide import Done
from headway.common.wire.messages.driver import NodeBeat, Relay, Seals, WorkerGone
from headway.common.wire.messages.executor import LeftGeneration, StoreOpened, WorkerBeat
from headway.controller.decisions.events import (
    BeginGeneration,
    DurableFound,
    Input,
    Send,
    Start,
    Tick,
)
from headway.controller.decisions.state import RunState
from headway.trainer.config import RecoveryConfig

RANKS = 8


def _beat(node: int, version: int, *, full: bool = True, **how: Any) -> NodeBeat:
    ranks = range(node * RANKS, (node + 1) * RANKS)
    workers = tuple(
        WorkerBeat(
            worker=f"n{node}w{rank}",
            pid=rank + 1,
            start_ticks=1,
            status=how.get("status", "running"),
            generation=how.get("generation", 0),
            rank=rank,
            step=how.get("step", 1),
            applied=how.get("applied", 0),
        )
        for rank in ranks
    )
    return NodeBeat(
        node=node,
        pid=node + 1,
        version=version,
        step=how.get("step", 1),
        workers=workers if full else None,
    )


def _joining(nodes: int) -> RunState:
    rank_nodes = {rank: rank // RANKS for rank in range(nodes * RANKS)}
    start = Start(run_id="r", steps=100, rank_nodes=rank_nodes, nodes=nodes)
    state = RunState(start, RecoveryConfig(), now=0.0)
    for node in range(nodes):
        state.handle(_beat(node, 1, status="idle", generation=-1), 0.1)
    for node in range(nodes):
        state.handle(Seals(node=node, generation=-1, sealed={}), 0.1)
    actions = state.handle(DurableFound(None), 0.1)
    state.handle(Done(next(a for a in actions if isinstance(a, BeginGeneration))), 0.1)
    assert state.phase == "joining"
    return state


def _running(nodes: int) -> RunState:
    state = _joining(nodes)
    for node in range(nodes):
        state.handle(_beat(node, 2), 0.2)
    assert state.phase == "running"
    state.validate()
    return state


def _calls(state: RunState, event: Input) -> int:
    """Calls of functions, Python's and C's."""
    calls = 0

    def count(frame: object, what: str, arg: object) -> None:
        nonlocal calls
        del frame, arg
        calls += what in ("call", "c_call")

    sys.setprofile(count)
    try:
        state.handle(event, 0.3)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("kind", ["pulse", "step", "full", "changed", "tick"])
def test_an_event_of_a_running_run_costs_the_same_at_any_size(kind: str) -> None:
    event: Input = {
        "pulse": _beat(1, 2, full=False),
        "step": _beat(1, 2, full=False, step=7),
        "full": _beat(1, 2, step=7),
        "changed": _beat(1, 3, applied=1),
        "tick": Tick(),
    }[kind]
    small, large = _calls(_running(4), event), _calls(_running(200), event)
    assert small == large
    assert kind in ("changed", "full") or small < 100


def test_gathering_and_joining_cost_the_same_for_each_node_at_any_size() -> None:
    """All nodes come at once: what each costs must not depend on how many there are."""
    costs = []
    for nodes in (4, 100):
        rank_nodes = {rank: rank // RANKS for rank in range(nodes * RANKS)}
        start = Start(run_id="r", steps=100, rank_nodes=rank_nodes, nodes=nodes)
        state = RunState(start, RecoveryConfig(), now=0.0)
        gathering = _calls(state, _beat(1, 1, status="idle", generation=-1))
        for node in range(nodes):
            state.handle(_beat(node, 1, status="idle", generation=-1), 0.3)
        for node in range(nodes):
            state.handle(Seals(node=node, generation=-1, sealed={}), 0.3)
        actions = state.handle(DurableFound(None), 0.3)
        state.handle(Done(next(a for a in actions if isinstance(a, BeginGeneration))), 0.3)
        costs.append((gathering, _calls(state, _beat(1, 2))))
    assert costs[0] == costs[1]


def test_an_answer_that_comes_late_costs_the_same_at_any_size() -> None:
    """Each node is asked for its snapshots until it answers, so many answers come twice."""
    late = Seals(node=1, generation=-1, sealed={})
    small, large = _calls(_joining(4), late), _calls(_joining(200), late)
    assert small == large < 200


def test_a_worker_that_ends_while_others_leave_costs_the_same_at_any_size() -> None:
    """A switch that dies ends many at once."""
    costs = []
    for nodes in (4, 200):
        state = _running(nodes)
        state.handle(WorkerGone(node=0, worker="n0w0", rank=0, pid=1, generation=0, reason=""), 0.3)
        assert state.phase == "leaving"
        gone = WorkerGone(
            node=1, worker=f"n1w{RANKS}", rank=RANKS, pid=RANKS + 1, generation=0, reason=""
        )
        costs.append(_calls(state, gone))
    assert costs[0] == costs[1] < 200


def test_a_generation_that_is_left_is_left_by_all_at_once() -> None:
    """The first sign of a failure may come from one node;
    the others are asked in the same moment."""
    state = _running(3)
    left = LeftGeneration(worker="n0w0", rank=0, generation=0, reason="error", detail="broken")
    asked = {a.node for a in state.handle(Relay(node=0, left=left), 0.3) if isinstance(a, Send)}
    assert asked == {0, 1, 2}
    state = _running(3)
    asked = {a.node for a in state.handle(_beat(0, 3, status="left"), 0.3) if isinstance(a, Send)}
    assert asked == {1, 2}


def test_the_address_of_the_store_is_sent_to_all_at_once() -> None:
    state = _joining(3)
    for node in range(3):
        state.handle(_beat(node, 2, status="joining"), 0.2)
    opened = Relay(node=0, store=StoreOpened(generation=0, host="h", port=1))
    asked = [a for a in state.handle(opened, 0.2) if isinstance(a, Send)]
    assert len(asked) == 3 * RANKS
    assert not [a for a in state.handle(Tick(), 0.3) if isinstance(a, Send)]  # not due again yet
