"""Workers of another version of the code than the run's get no rank, and are named."""

from __future__ import annotations

import dataclasses

import msgspec
from headway.common.decide import Action, Log
from headway.common.wire.messages.executor import KillWorker, RestartService, WorkerBeat
from headway.controller.decisions.admission.same_code import AGAIN_S
from headway.controller.decisions.events import BeginGeneration
from headway.testkit.simulation.by_hand import Hand, asked_for, events, only, sent
from headway.testkit.simulation.driver import LIMITS
from headway.trainer.config import RecoveryConfig

OLD, NEW = "0123456789abcdef", "fedcba9876543210"
SOON = dataclasses.replace(LIMITS, wait_for_node_s=20.0)


def _of(view: WorkerBeat, source: str) -> WorkerBeat:
    return msgspec.structs.replace(view, source=source)  # type: ignore[type-var]


def _hand(nodes: int = 2, limits: RecoveryConfig = SOON, generation: int = -1) -> Hand:
    """Every node has the old code."""
    hand = Hand(nodes=nodes, limits=limits, source=OLD, generation=generation)
    for views in hand.workers.values():
        views[:] = [_of(view, OLD) for view in views]
    return hand


def _change_code(hand: Hand, node: int) -> list[Action]:
    """The source changes, then all workers of the node die, and its zygote forks new ones."""
    hand.workers[node] = [_of(hand.idle(node, index), NEW) for index in (7, 8, 9)]
    return hand.beat(node) + hand.leave() + hand.wait(0.2)


def test_a_worker_of_other_code_gets_no_rank_and_is_named_with_a_remedy() -> None:
    hand = _hand().run()
    actions = _change_code(hand, 1)
    (named,) = [a for a in actions if isinstance(a, Log) and a.event == "code_differs"]
    assert (named.fields["node"], named.fields["source"]) == (1, NEW)
    assert hand.state.phase == "gathering"
    why = hand.state.why()
    assert "the workers of node 1 have another version of Headway's source than the run" in why
    assert "restore the old source, or stop and resume the run" in why
    assert not [a for a in actions if isinstance(a, BeginGeneration)]
    assert not [k for k in sent(actions, KillWorker) if k.node == 0], "the others keep their state"


def test_once_the_source_is_restored_the_run_continues() -> None:
    hand = _hand(limits=LIMITS).run()
    actions = _change_code(hand, 1)
    assert [order.node for order in sent(actions, RestartService)] == [1]
    assert len(sent(actions, KillWorker)) == 3, "they were forked by the zygote that is replaced"
    assert sent(hand.wait(AGAIN_S / 2), RestartService) == []
    assert len(sent(hand.wait(AGAIN_S), RestartService)) == 1, "the source is looked at again"
    hand.workers[1] = [_of(hand.idle(1, index), OLD) for index in (17, 18, 19)]
    hand.beat(1)
    assert hand.state.phase == "reading"


def test_a_spare_of_the_right_code_takes_the_ranks() -> None:
    hand = _hand(nodes=3, limits=LIMITS).run()
    actions = _change_code(hand, 1) + hand.wait(LIMITS.gather_timeout_s + 1.0)
    assert "node_replaced" in events(actions)
    assert set(hand.state.fleet.rank_nodes.values()) == {0, 2}


def test_a_spare_of_other_code_takes_none() -> None:
    hand = _hand(nodes=3).run()
    hand.workers[2] = [_of(hand.idle(2, index), NEW) for index in (7, 8, 9)]
    hand.beat(2)
    actions = _change_code(hand, 1) + hand.wait(LIMITS.gather_timeout_s + 1.0)
    assert "node_replaced" not in events(actions)


def test_the_run_ends_by_name_if_nobody_acts() -> None:
    hand = _hand().run()
    actions = _change_code(hand, 1) + hand.wait(SOON.wait_for_node_s + 1.0)
    assert asked_for(actions)
    hand.wait(LIMITS.choose_timeout_s + 1.0)
    assert hand.state.outcome == "failed"
    assert "stop and resume the run" in hand.state.detail


def test_a_new_driver_of_new_code_keeps_the_code_of_the_living_ranks() -> None:
    hand = _hand(generation=3)
    again = Hand(nodes=2, limits=SOON, generation=3, source=NEW)
    again.workers = hand.workers
    for rank in range(4):
        how = {"status": "running", "generation": 3, "rank": rank, "step": 9}
        again.change(rank // 2, rank % 2, **how)
    again.gather()
    assert again.state.phase == "running"
    _change_code(again, 1)
    assert again.state.phase == "gathering"
    assert f"{NEW}, not {OLD}" in again.state.why()


def test_a_run_that_was_stopped_continues_with_all_new_code() -> None:
    hand = Hand(nodes=2, generation=3, source=NEW)
    for node, views in hand.workers.items():
        hand.workers[node] = [_of(view, NEW) for view in views]
    hand.run_again(5)
    assert hand.state.phase == "running"
    assert only(hand.wait(0.1) or [Log("none")], Log).event == "none"
