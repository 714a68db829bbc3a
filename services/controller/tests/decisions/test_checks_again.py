"""Checks that are repeated, doubted or left out, so that no machine is excluded for good by one."""

from __future__ import annotations

from typing import Any

import pytest
from headway.common.decide import Action, Log
from headway.common.wire.messages.driver import NodeCheck
from headway.common.wire.messages.executor import CheckNode
from headway.controller.decisions.admission.check_table import AGAIN_S, SAME_MACHINE_S
from headway.controller.decisions.events import CheckWanted, NodeRebooted
from headway.testkit.simulation.by_hand import Hand, events, sent


class Spares(Hand):
    """A run that trains, whose spares 2, 3, ... are being checked; executors repeat results."""

    def __init__(self, number: int = 1, **more: Any) -> None:
        super().__init__(checks_nodes=True, nodes=2 + number, **more)
        self.shown: dict[int, NodeCheck] = {}
        self.run()
        self.wait(1.0)

    def beat(self, node: int, **changes: Any) -> list[Action]:
        if "check" in changes:
            self.shown[node] = changes["check"]
        return super().beat(node, **{"check": self.shown.get(node), **changes})

    def ordered(self, seconds: float) -> dict[int, int]:
        """Node -> number of the newest check that is ordered in this time."""
        orders = sent(self.wait(seconds), CheckNode)
        return {order.node: order.message.number for order in orders}

    def done(self, node: int, number: int, *failed: str) -> list[Action]:
        """A beat with the result."""
        reason = f"{failed[0]}: bad" if failed else ""
        return self.beat(
            node, check=NodeCheck(number=number, is_done=True, failed=failed, reason=reason)
        )

    def restart(self, node: int) -> list[Action]:
        """Another executor reports, with a standby."""
        self.silent.discard(node)
        self.incarnation[node] += 1
        self.shown.pop(node, None)
        self.workers[node] = [self.idle(node, 7)]
        return self.beat(node)

    def back(self, node: int) -> list[Action]:
        """The same executor reports again."""
        self.silent.discard(node)
        self.workers[node] = [self.idle(node, 7)]
        return self.beat(node)

    def lose(self, node: int, seconds: float = 0.0) -> list[Action]:
        """The node is silent for long enough."""
        self.silent.add(node)
        return self.wait(seconds or self.state.limits.node_lost_s + 10.0)

    def status(self, node: int) -> str:
        return self.state.status_of(node)


def fields(actions: list[Action], event: str) -> list[dict[str, Any]]:
    return [
        action.fields for action in actions if isinstance(action, Log) and action.event == event
    ]


def test_a_node_that_failed_is_checked_again_after_pauses_that_grow_and_returns() -> None:
    hand = Spares()
    hand.done(2, 1, "shm")
    for again_s in (*AGAIN_S, AGAIN_S[-1]):
        assert "bad" in hand.state.unused()[2]
        assert hand.ordered(again_s - 5.0) == {}
        ((node, number),) = hand.ordered(10.0).items()
        assert node == 2 and hand.state.fleet.checks.wanted
        assert "checked again" in hand.state.unused()[2]
        assert hand.beat(2) == [], "the old result, which the executor still shows"
        actions = hand.done(2, number, "shm")
        assert fields(actions, "node_checked")[0]["result"] == "failed"
        assert "node_lost" not in events(actions), "it is lost already"
    number = hand.ordered(AGAIN_S[-1] + 5.0)[2]
    assert "node_returned" in events(hand.done(2, number)), "the same executor"
    assert hand.status(2) == "spare" and hand.state.unused() == {}


def test_a_node_that_failed_and_is_silent_is_not_checked_until_it_reports() -> None:
    hand = Spares()
    hand.done(2, 1, "shm")
    hand.silent.add(2)
    assert hand.ordered(AGAIN_S[0] + 20.0) == {}
    hand.silent.discard(2)
    assert 2 in hand.ordered(2.0)


def test_a_check_that_is_repeated_without_a_result_leaves_the_failure() -> None:
    hand = Spares()
    hand.done(2, 1, "shm")
    actions = hand.wait(AGAIN_S[0] + hand.start.check_limit_s + 5.0)
    assert [found["result"] for found in fields(actions, "node_checked")] == ["not_run"]
    assert hand.status(2) == "lost" and "shm: bad" in hand.state.unused()[2]


def test_what_most_machines_fail_excludes_none_and_is_recorded() -> None:
    hand = Spares(3)
    hand.done(2, 1, "disk")
    assert hand.status(2) == "lost", "one of three"
    actions = hand.done(3, 1, "disk")
    ((doubt),) = fields(actions, "checks_doubted")
    assert (doubt["checks"], doubt["nodes"]) == (["disk"], [2, 3])
    assert "node_lost" not in events(actions)
    assert "node_returned" in events(hand.beat(2))
    assert hand.state.unused() == {} and hand.status(2) == hand.status(3) == "spare"
    hand.done(4, 1)
    assert hand.state.spare_for(0) == 4, "the one that passed comes first"


def test_a_machine_that_fails_something_else_too_is_excluded_beside_a_doubted_check() -> None:
    hand = Spares(3)
    hand.done(2, 1, "disk")
    hand.done(3, 1, "disk", "memory")
    assert hand.status(3) == "lost" and "disk" in hand.state.unused()[3]
    hand.beat(2)
    assert hand.status(2) == "lost", "the second to fail was given up, and nothing was doubted"


def test_a_doubt_is_over_once_the_others_pass() -> None:
    hand = Spares(3)
    for node in (2, 3, 4):
        hand.done(node, 1, "disk")
    for node in (2, 3, 4):
        hand.beat(node)
        assert hand.status(node) == "spare"
    orders = hand.ordered(AGAIN_S[0] + 5.0)
    assert set(orders) == {2, 3, 4}
    hand.done(2, orders[2])
    hand.done(3, orders[3])
    hand.done(4, orders[4], "disk")
    assert (hand.status(3), hand.status(4)) == ("spare", "lost")


def test_of_many_machines_two_that_fail_the_same_are_excluded() -> None:
    hand = Spares(5)
    for node in (4, 5, 6):
        hand.done(node, 1)
    for node in (2, 3):
        assert "checks_doubted" not in events(hand.done(node, 1, "shm"))
        assert hand.status(node) == "lost"


def test_a_node_is_used_unchecked_at_once_if_ranks_lack_one_and_that_is_recorded() -> None:
    hand = Spares()
    hand.done(2, 1)
    hand.lose(2)
    hand.lose(1, 1.0)
    hand.leave()
    hand.wait(hand.state.limits.node_lost_s + 1.0)
    hand.restart(2)
    actions = hand.wait(0.2)
    assert "node_returned" in events(actions), "at the next tick"
    actions += hand.wait(20.0)  # until the silent one is given up for it
    assert {"node_returned", "node_replaced", "node_unchecked"} <= set(events(actions))
    assert hand.status(2) == "active" and sent(hand.wait(2.0), CheckNode) == []


def test_a_node_whose_check_failed_is_not_used_even_if_ranks_lack_one() -> None:
    hand = Spares()
    hand.done(2, 1, "memory")
    hand.lose(1, 1.0)
    hand.leave()
    hand.wait(hand.state.limits.node_lost_s + 1.0)
    number = max(
        order.message.number for order in sent(hand.restart(2) + hand.wait(3.0), CheckNode)
    )
    assert hand.status(2) == "lost"
    hand.done(2, number)
    assert "node_replaced" in events(hand.wait(3.0))


def test_a_request_begins_a_new_check_and_older_results_do_not_count() -> None:
    hand = Spares()
    hand.done(2, 1, "shm")
    assert hand.state.check_refusal(2) == ""
    actions = hand.send(CheckWanted(2))
    assert events(actions) == ["check_asked"]
    number = hand.ordered(1.0)[2]
    assert number > 1
    assert events(hand.beat(2)) == [] and 2 in hand.state.fleet.checks.wanted
    assert "node_returned" in events(hand.done(2, number))


def test_a_request_that_makes_no_sense_is_refused_with_the_reason() -> None:
    hand = Spares()
    assert "carries ranks" in hand.state.check_refusal(0)
    assert "not in the run" in hand.state.check_refusal(7)
    assert hand.send(CheckWanted(0)) == hand.send(CheckWanted(7)) == []
    assert "health.check_nodes" in Hand().run().state.check_refusal(2)


@pytest.mark.parametrize("silent_s", [2.0, SAME_MACHINE_S + 2.0])
def test_a_spare_whose_executor_restarts_is_checked_again_only_after_a_silence(
    silent_s: float,
) -> None:
    hand = Spares(limits=Hand().state.limits)
    hand.done(2, 1)
    hand.silent.update({0, 2})  # with a silent node that has ranks, it is not given up
    hand.wait(silent_s)
    assert hand.status(2) != "lost"
    hand.silent.clear()
    hand.restart(2)
    hand.beat(0)
    is_long = silent_s > SAME_MACHINE_S
    assert hand.state.fleet.nodes[2].check == ("none" if is_long else "passed")


def test_a_pass_from_before_the_machine_was_lost_or_restarted_does_not_count() -> None:
    hand = Spares()
    hand.lose(2)
    hand.back(2)
    number = hand.ordered(1.0)[2]
    hand.lose(2, hand.state.limits.node_silent_s + 1.0)
    done = NodeCheck(number=number, is_done=True)
    hand.beat(2, workers=None, services=None, check=done)
    node = hand.state.fleet.nodes[2]
    assert (node.status, node.check) == ("lost", "passed"), "until a beat shows its workers"
    hand.restart(2)
    assert hand.status(2) == "lost" and hand.ordered(1.0)[2] > number


def test_a_spare_whose_machine_was_rebooted_is_checked_again() -> None:
    hand = Spares()
    hand.done(2, 1)
    assert hand.ordered(2.0) == {}
    hand.send(NodeRebooted(2))
    assert hand.ordered(2.0)[2] > 1


def test_a_successor_checks_a_failed_node_again_after_a_pause() -> None:
    hand = Spares()
    hand.done(2, 1, "shm")
    successor = Hand(checks_nodes=True, memory=hand.state.memory)
    shown = hand.shown[2]
    successor.beat(2, check=shown)
    assert successor.state.status_of(2) == "lost" and "shm: bad" in successor.state.unused()[2]
    orders = sent(successor.wait(AGAIN_S[0] + 5.0), CheckNode)
    assert {order.node for order in orders} == {2} and orders[0].message.number > 1
