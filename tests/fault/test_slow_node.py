"""A node that is slow to come back is given up only when a restart did not help
and a spare is ready."""

from __future__ import annotations

from headway.common.decide import Action, Done, Failed, Log
from headway.common.wire.messages.driver import NodeBeat
from headway.controller.decisions.events import Finish, RestartNode, Start, Tick
from headway.controller.decisions.state import RunState
from headway.trainer.config import RecoveryConfig

LIMITS = RecoveryConfig(
    group_timeout_s=10,
    join_timeout_s=20,
    leave_timeout_s=3,
    driver_silent_s=0.75,
    node_silent_s=1.5,
    node_lost_s=4,
)


def _state(nodes: int) -> RunState:
    start = Start(run_id="r", steps=9, rank_nodes={0: 0}, nodes=nodes)
    return RunState(start, LIMITS, now=0.0)


def _drive(
    state: RunState, seconds: int, *, beating: tuple[int, ...] = (), answer: str = "done"
) -> list[Action]:
    """Ticks, beats of these nodes, and an engine that answers."""
    actions: list[Action] = []
    for tenth in range(seconds * 10):
        now = tenth / 10
        for node in beating:
            actions += state.handle(NodeBeat(node=node, pid=1, workers=(), services={}), now)
        new = state.handle(Tick(), now)
        actions += new
        for action in new:
            if isinstance(action, RestartNode) and answer:
                done = Done(action) if answer == "done" else Failed(action, answer)
                actions += state.handle(done, now)
        state.validate()
    return actions


def _events(actions: list[Action]) -> set[str]:
    return {action.event for action in actions if isinstance(action, Log)}


def test_without_a_spare_the_start_is_asked_for_again_and_again() -> None:
    for answer in ("done", "no more processes", ""):
        actions = _drive(_state(1), 300, answer=answer)
        assert not any(isinstance(action, Finish) for action in actions)
        assert sum(action == RestartNode(0) for action in actions) >= 5
        assert "node_lost" not in _events(actions)


def test_with_a_spare_that_beats_the_silent_node_is_replaced() -> None:
    for answer in ("done", "no more processes", ""):
        state = _state(2)
        actions = _drive(state, 30, beating=(1,), answer=answer)
        assert {"node_lost", "node_replaced"} <= _events(actions)
        assert state.fleet.rank_nodes == {0: 1}


def test_a_node_is_not_given_up_before_a_restart_had_time_to_help() -> None:
    state = _state(2)
    actions = _drive(state, 8, beating=(1,), answer="")
    assert RestartNode(0) in actions
    assert "node_lost" not in _events(actions)


def test_a_spare_that_is_silent_too_is_no_reason_to_give_up() -> None:
    actions = _drive(_state(2), 60)
    assert "node_lost" not in _events(actions)
