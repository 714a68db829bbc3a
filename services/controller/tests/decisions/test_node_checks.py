"""Machines are checked before a run relies on them, and no recovery waits for it."""

from __future__ import annotations

from typing import Any

import pytest
from headway.common.decide import Action, Log
from headway.common.wire.messages.driver import NodeCheck
from headway.common.wire.messages.executor import CheckNode
from headway.controller.decisions.admission.node_checks import SUSPECT_AGAIN_S
from headway.controller.decisions.events import Start, VerdictReceived
from headway.testkit.simulation.by_hand import Hand, events, sent


@pytest.fixture
def hand() -> Hand:
    """A run that trains, whose spare is node 2."""
    return Hand(checks_nodes=True).run()


def orders(actions: list[Action]) -> list[tuple[int, int]]:
    return [(order.node, order.message.number) for order in sent(actions, CheckNode)]


def result(hand: Hand, node: int, number: int, *failed: str, reason: str = "") -> list[Action]:
    check = NodeCheck(number=number, is_done=True, failed=failed, reason=reason)
    return hand.beat(node, check=check)


def checked(actions: list[Action]) -> list[tuple[int, str, list[str]]]:
    logs = [a.fields for a in actions if isinstance(a, Log) and a.event == "node_checked"]
    return [(log["node"], log["result"], log["failed"]) for log in logs]


def lose(hand: Hand, node: int) -> list[Action]:
    """The machine of the node is gone for long enough."""
    hand.silent.add(node)
    return hand.wait(hand.state.limits.node_lost_s + 10.0)


def back(hand: Hand, node: int, **changes: Any) -> list[Action]:
    """It reports with another executor and a standby."""
    hand.silent.discard(node)
    hand.incarnation[node] += 1
    hand.workers[node] = [hand.idle(node, 7)]
    return hand.beat(node, **changes)


def test_a_spare_is_checked_while_the_run_trains_until_a_beat_has_the_result(hand: Hand) -> None:
    actions = hand.wait(3.0)
    assert set(orders(actions)) == {(2, 1)}, "of nodes with ranks none is checked"
    assert len(orders(actions)) > 2, "a lost order is sent again"
    assert hand.beat(2, check=NodeCheck(number=1)) == []
    assert checked(result(hand, 2, 0)) == [], "an older check"
    assert checked(result(hand, 2, 1)) == [(2, "passed", [])]
    assert orders(hand.wait(3.0)) == [] and hand.state.unused() == {}


def test_a_spare_that_fails_is_given_up_by_name_until_it_was_repaired(hand: Hand) -> None:
    hand.wait(1.0)
    actions = result(hand, 2, 1, "shm", "clock", reason="shm: 3 MiB free")
    assert checked(actions) == [(2, "failed", ["shm", "clock"])]
    assert "node_lost" in events(actions)
    assert hand.state.status_of(2) == "lost" and hand.state.spare_for(0) is None
    assert "its check failed: shm: 3 MiB free" in hand.state.unused()[2]
    same = NodeCheck(number=1, is_done=True, failed=("shm",))
    assert events(hand.beat(2, check=same)) == [], "the same executor"
    actions = back(hand, 2) + hand.wait(1.0)
    assert "node_returned" not in events(actions)
    assert "it is checked again" in hand.state.unused()[2]
    ((node, number),) = set(orders(actions))
    assert checked(result(hand, node, number, "shm")) == [(2, "failed", ["shm"])]
    number = max(orders(back(hand, 2) + hand.wait(1.0)))[1]
    actions = result(hand, 2, number)
    assert checked(actions) == [(2, "passed", [])] and "node_returned" in events(actions)
    assert hand.state.spare_for(0) == 2


def test_a_recovery_does_not_wait_for_the_check_of_a_spare(hand: Hand) -> None:
    hand.wait(1.0)
    actions = lose(hand, 1)
    hand.leave()
    actions += hand.wait(1.0)
    assert "node_replaced" in events(actions)
    assert checked(result(hand, 2, 1, "shm")) == [], "its check is no longer wanted"
    assert orders(hand.wait(1.0)) == [] and hand.state.status_of(2) == "active"


def test_that_an_unchecked_spare_takes_over_is_recorded(hand: Hand) -> None:
    hand.wait(1.0)
    actions = lose(hand, 1) + hand.leave() + hand.wait(1.0)
    assert "node_unchecked" in events(actions)
    checked_spare = Hand(checks_nodes=True).run()
    checked_spare.wait(1.0)
    result(checked_spare, 2, 1)
    actions = lose(checked_spare, 1) + checked_spare.leave() + checked_spare.wait(1.0)
    assert "node_replaced" in events(actions) and "node_unchecked" not in events(actions)


def test_a_spare_that_was_checked_comes_before_one_that_was_not() -> None:
    hand = Hand(checks_nodes=True, nodes=4).run()
    hand.wait(1.0)
    result(hand, 3, 1)
    assert hand.state.spare_for(0) == 3


def test_a_node_that_returns_is_no_spare_before_its_check(hand: Hand) -> None:
    hand.wait(1.0)
    result(hand, 2, 1)
    lose(hand, 2)
    assert hand.state.status_of(2) == "lost"
    old = NodeCheck(number=1, is_done=True)
    actions = back(hand, 2, check=old) + hand.wait(1.0)
    assert "node_returned" not in events(actions)
    assert hand.state.unused() == {2: "it is checked before it is used"}
    number = max(orders(actions))[1]
    assert number > 1
    assert "node_returned" in events(result(hand, 2, number))


def test_a_node_that_returns_to_its_ranks_is_used_at_once() -> None:
    hand = Hand(checks_nodes=True, nodes=2).run()
    lose(hand, 1)
    hand.leave()
    hand.wait(hand.state.limits.node_lost_s)
    actions = back(hand, 1)
    assert hand.state.status_of(1) == "active" and orders(actions) == []


def test_without_an_answer_the_check_counts_as_not_applicable(hand: Hand) -> None:
    actions = hand.wait(hand.start.check_limit_s + 5.0)
    assert checked(actions) == [(2, "not_run", [])]
    assert hand.state.spare_for(0) == 2


def test_what_could_not_be_checked_is_used_and_said(hand: Hand) -> None:
    hand.wait(1.0)
    actions = result(hand, 2, 1, reason="the check printed no result")
    assert checked(actions) == [(2, "not_run", [])]
    assert hand.state.spare_for(0) == 2


@pytest.mark.parametrize(("kind", "is_checked"), [("memory_error", True), ("nan_loss", False)])
def test_a_spare_that_a_verdict_names_is_checked_again(
    hand: Hand, kind: str, is_checked: bool
) -> None:
    hand.wait(1.0)
    result(hand, 2, 1)
    hand.wait(SUSPECT_AGAIN_S)
    verdict = VerdictReceived("v1", 1, kind, "observe", 2)
    actions = hand.send(verdict) + hand.wait(2.0)
    assert set(orders(actions)) == ({(2, 2)} if is_checked else set())
    if is_checked:
        assert hand.state.spare_for(0) == 2
        assert checked(result(hand, 2, 2, "memory")) == [(2, "failed", ["memory"])]
        assert hand.state.spare_for(0) is None


def test_a_successor_knows_which_nodes_failed_and_which_passed(hand: Hand) -> None:
    hand.wait(1.0)
    failed = NodeCheck(number=1, is_done=True, failed=("shm",), reason="shm: 3 MiB free")
    hand.beat(2, check=failed)
    memory = hand.state.memory
    successor = Hand(checks_nodes=True, memory=memory)
    successor.beat(2, check=failed)
    assert successor.state.status_of(2) == "lost"
    assert "3 MiB free" in successor.state.unused()[2]
    other = Hand(checks_nodes=True)
    other.gather()
    assert checked(result(other, 2, 4)) == [(2, "passed", [])], "from before this driver"
    assert other.state.spare_for(0) == 2


def test_without_checks_nothing_is_ordered() -> None:
    hand = Hand().run()
    assert Start("r", 1, {0: 0}, 1).checks_nodes is False
    assert orders(hand.wait(5.0)) == []
    assert checked(result(hand, 2, 9, "shm")) == []
    assert hand.state.spare_for(0) == 2
