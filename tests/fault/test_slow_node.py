"""A node that is slow to come back is given up only for a spare that is ready."""

from __future__ import annotations

from headway.common.wire.messages.driver import NodeBeat
from headway.trainer.config import RecoveryConfig
from headway.trainer.control.events import Action, Finish, Log, RestartNode, Tick
from headway.trainer.control.state import RunState

LIMITS = RecoveryConfig(
    group_timeout_s=10,
    join_timeout_s=20,
    out_timeout_s=3,
    driver_silent_s=0.5,
    node_silent_s=1,
    node_lost_s=4,
)


def _state(nodes: int) -> RunState:
    return RunState(steps=9, rank_nodes={0: 0}, nodes=nodes, limits=LIMITS, now=0.0)


def _events(actions: list[Action]) -> set[str]:
    return {action.event for action in actions if isinstance(action, Log)}


def test_without_a_spare_the_start_is_asked_for_again_and_again() -> None:
    state, actions = _state(1), []
    for now in range(1, 60):
        actions += state.handle(Tick(), float(now))
    assert not any(isinstance(action, Finish) for action in actions)
    assert sum(action == RestartNode(0) for action in actions) > 10
    assert "node_lost" not in _events(actions)


def test_with_a_spare_that_beats_the_silent_node_is_replaced() -> None:
    state = _state(2)
    actions = state.handle(NodeBeat(node=1, pid=1, workers=(), services={}), 4.5)
    assert {"node_lost", "node_replaced"} <= _events(actions)
    assert state.rank_nodes == {0: 1}


def test_a_spare_that_is_silent_too_is_no_reason_to_give_up() -> None:
    state = _state(2)
    state.handle(NodeBeat(node=1, pid=1, workers=(), services={}), 0.5)
    actions = [action for now in range(2, 30) for action in state.handle(Tick(), float(now))]
    assert "node_lost" not in _events(actions)
