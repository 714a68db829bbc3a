"""A beat costs the same work at any number of nodes; counted in function calls, which no load changes."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from headway.common.wire.messages.driver import NodeBeat, Seals
from headway.common.wire.messages.executor import WorkerBeat
from headway.trainer.config import RecoveryConfig
from headway.trainer.control.decisions.events import (
    BeginGeneration,
    Done,
    DurableFound,
    Event,
    Start,
    Tick,
)
from headway.trainer.control.decisions.state import RunState

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


def _running(nodes: int) -> RunState:
    rank_nodes = {rank: rank // RANKS for rank in range(nodes * RANKS)}
    start = Start(run_id="r", steps=100, rank_nodes=rank_nodes, nodes=nodes)
    state = RunState(start, RecoveryConfig(), now=0.0)
    for node in range(nodes):
        state.handle(_beat(node, 1, status="idle", generation=-1), 0.1)
    for node in range(nodes):
        state.handle(Seals(node=node, generation=-1, sealed={}), 0.1)
    actions = state.handle(DurableFound(None), 0.1)
    state.handle(Done(next(a for a in actions if isinstance(a, BeginGeneration))), 0.1)
    for node in range(nodes):
        state.handle(_beat(node, 2), 0.2)
    assert state.phase == "running"
    state.validate()
    return state


def _calls(state: RunState, event: Event) -> int:
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
    event: Event = {
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
