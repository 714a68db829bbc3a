"""Another machine is ordered for one that is lost for good: when, how often, and until when the run
waits for it."""

from __future__ import annotations

import pytest
from headway.common.decide import Action, Done, Failed
from headway.controller.decisions.events import (
    AwaitCheckpoint,
    DrainNode,
    EvictNode,
    ReleaseNode,
    ReplaceMachine,
    RestartNode,
    VerdictReceived,
)
from headway.controller.decisions.machines.machine_orders import AGAIN_S
from headway.controller.decisions.machines.replenishing import ANSWER_LIMIT_S, RETURN_LIMIT_S
from headway.launch.engine import Replaces
from headway.testkit.simulation.by_hand import events, only

from services.controller.tests.decisions.replaced import (
    AFTER_S,
    LOST_WITHIN_S,
    QUEUED,
    WAITING,
    boot,
    hand_with,
    logged,
    lose,
    order_for,
    orders_in,
    pass_time,
)


# ---- when --------------------------------------------------------------------------------------
@pytest.mark.parametrize("node", [1, 2], ids=["with ranks", "a spare"])
def test_a_lost_machine_is_replaced_after_the_limit_and_its_node_is_a_spare_again(
    node: int,
) -> None:
    hand = hand_with().run()
    assert not orders_in(lose(hand, node) + pass_time(hand, AFTER_S - LOST_WITHIN_S - 1.0))
    order = only(pass_time(hand, LOST_WITHIN_S), ReplaceMachine)
    assert (order.node, order.reason[:10]) == (node, "silent for")
    assert "another machine was ordered" in hand.state.machine_sentences()[node]
    assert RestartNode(node) not in pass_time(hand, 30.0), "it is being rebuilt"
    hand.send(Done(order))
    assert only(hand.wait(0.2), RestartNode) == RestartNode(node)
    assert "has not reported yet" in hand.state.machine_sentences()[node]
    assert "node_returned" in events(boot(hand, node))
    assert hand.state.status_of(node) == "spare"
    assert hand.state.machine_sentences() == {} and hand.state.memory.machine_orders == ()


@pytest.mark.parametrize("replaces", ["nothing", "condemned"])
def test_an_engine_that_replaces_no_lost_machines_is_not_asked_to(replaces: Replaces) -> None:
    hand = hand_with(replaces=replaces).run()
    lose(hand, 1)
    assert not orders_in(pass_time(hand, 5 * AFTER_S))
    assert hand.state.machine_sentences() == {}


def test_without_a_spare_a_silent_machine_is_given_up_for_another_one() -> None:
    hand = hand_with(nodes=2).run()
    lose(hand, 1)
    assert hand.state.status_of(1) == "silent", "it may come back"
    actions = pass_time(hand, AFTER_S)
    order = only(actions, ReplaceMachine)
    assert hand.state.status_of(1) == "lost"
    assert "another machine was ordered" in hand.state.why()
    hand.send(Done(order))
    boot(hand, 1)
    assert hand.state.status_of(1) == "active", "nobody has taken its ranks"
    pass_time(hand, 5.0)
    assert hand.state.phase == "running"


def test_a_machine_whose_ranks_step_is_not_replaced_for_its_silent_executor() -> None:
    hand = hand_with(nodes=2).run()
    hand.silent.add(1)
    actions: list[Action] = []
    for _ in range(round(3 * AFTER_S)):
        hand.step += 1
        hand.beat(0, step=hand.step)
        actions += pass_time(hand, 1.0)
    assert hand.state.phase == "running" and not orders_in(actions)


def test_a_machine_that_returns_by_itself_is_not_replaced() -> None:
    hand = hand_with().run()
    lose(hand, 1)
    pass_time(hand, AFTER_S - LOST_WITHIN_S - 2.0)
    boot(hand, 1)
    assert not orders_in(pass_time(hand, 2 * AFTER_S))


def test_what_reports_while_the_machine_is_rebuilt_is_not_used() -> None:
    hand = hand_with().run()
    order = order_for(hand)
    assert "node_returned" not in events(boot(hand, 1) + pass_time(hand, 5.0))
    assert hand.state.eviction_refusal(1) == "another machine is on order for node 1"
    hand.send(Failed(order, "no capacity"))
    assert "node_returned" in events(hand.beat(1)), "it is left as it is"
    assert not orders_in(pass_time(hand, 2 * AGAIN_S[0]))


@pytest.mark.parametrize("replaces", ["lost", "condemned"])
@pytest.mark.parametrize("node", [1, 2], ids=["with ranks", "a spare"])
def test_a_condemned_machine_is_replaced_once_nothing_of_the_run_is_on_it(
    node: int, replaces: Replaces
) -> None:
    hand = hand_with(replaces=replaces).run()
    actions = hand.send(VerdictReceived("v", 1, "gpu_fault", "replace_node", node, detail="Xid 79"))
    assert not orders_in(actions)
    release = only(hand.wait(0.2), ReleaseNode)
    assert not orders_in(hand.wait(3.0)), "its processes may still run"
    hand.silent.add(node)
    order = only(hand.send(Done(release)) + hand.wait(0.2), ReplaceMachine)
    assert (order.node, order.reason) == (node, "gpu_fault: Xid 79")
    hand.send(Done(order, "gpu-02 stays allocated"))
    boot(hand, node)
    assert hand.state.status_of(node) == "spare"
    assert hand.state.machine_sentences() == {node: "gpu-02 stays allocated"}


def test_a_condemned_machine_is_left_alone_where_the_engine_has_no_other_one() -> None:
    hand = hand_with(replaces="nothing").run()
    hand.send(VerdictReceived("v", 1, "gpu_fault", "replace_node", 2))
    actions = pass_time(hand, 2 * AFTER_S)
    assert not [one for one in actions if isinstance(one, (ReleaseNode, ReplaceMachine))]


def test_an_evicted_machine_that_cannot_be_reached_is_replaced_after_the_limit() -> None:
    hand = hand_with().run()
    hand.silent.add(2)
    hand.send(EvictNode(2))
    actions: list[Action] = []
    for _ in range(round(AFTER_S) + 1):
        new = pass_time(hand, 1.0)
        for release in [one for one in new if isinstance(one, ReleaseNode)]:
            new += hand.send(Failed(release, "it cannot be reached"))
        actions += new
    assert only(actions, ReplaceMachine).reason == "evicted"


@pytest.mark.parametrize(
    ("replaces", "is_announced", "is_replaced"),
    [
        ("lost", False, False),
        ("lost", True, False),
        ("condemned", False, True),
        ("condemned", True, False),
    ],
)
def test_a_drained_machine_is_replaced_where_it_left_for_good(
    replaces: Replaces, is_announced: bool, is_replaced: bool
) -> None:
    """Elsewhere somebody works on it, or its owner takes it away."""
    hand = hand_with(replaces=replaces).run()
    actions = hand.send(DrainNode(2, 10.0, is_announced))
    hand.silent.add(2)
    actions = hand.send(Done(only(actions, ReleaseNode))) + pass_time(hand, 2 * AFTER_S)
    assert bool(orders_in(actions)) is is_replaced
    if not is_replaced:
        again = hand_with(replaces=replaces, memory=hand.state.memory)
        again.silent.add(2)
        assert not orders_in(pass_time(again, 2 * AFTER_S)), "a successor knows that, too"


def test_a_person_who_evicts_a_draining_node_wants_its_machine_replaced() -> None:
    hand = hand_with().run()
    hand.send(DrainNode(1, 60.0))
    assert hand.state.memory.leaving == (1,)
    hand.silent.add(1)
    actions = hand.send(Done(only(hand.send(EvictNode(1)), ReleaseNode)))
    assert only(actions + hand.wait(0.2), ReplaceMachine).node == 1


def test_a_machine_that_could_not_be_drained_is_replaced_when_it_is_lost() -> None:
    hand = hand_with().run()
    question = only(hand.send(DrainNode(1, 5.0)), AwaitCheckpoint)
    hand.send(Failed(question, "none yet"))
    lose(hand, 2)
    assert hand.state.status_of(1) == "active", "no spare was ready"
    lose(hand, 1)
    assert 1 in [order.node for order in orders_in(pass_time(hand, AFTER_S))]


def test_a_machine_that_was_drained_before_its_node_returned_is_replaced_when_it_is_lost() -> None:
    hand = hand_with().run()
    hand.send(Done(only(hand.send(DrainNode(2, 10.0)), ReleaseNode)))
    boot(hand, 2)
    lose(hand, 2)
    assert only(pass_time(hand, AFTER_S), ReplaceMachine).node == 2


def test_a_machine_that_fails_its_check_twice_is_replaced() -> None:
    hand = hand_with().run()
    hand.silent.add(2)
    lose(hand, 2)
    node = hand.state.fleet.nodes[2]
    hand.state.lose_node(2, "its check failed: shm", exclusion="check")
    hand.silent.clear()
    hand.pulse(2)
    node.check, node.check_failures = "failed", 1
    assert not orders_in(pass_time(hand, 2 * AFTER_S))
    node.check_failures = 2
    assert only(pass_time(hand, 1.0), ReplaceMachine).node == 2


def test_a_machine_that_dies_after_a_failed_check_is_replaced_as_any_that_is_lost() -> None:
    hand = hand_with().run()
    hand.silent.add(2)
    hand.state.lose_node(2, "its check failed: shm", exclusion="check")
    hand.state.fleet.nodes[2].check_failures = 1
    assert only(pass_time(hand, AFTER_S + LOST_WITHIN_S), ReplaceMachine).node == 2


# ---- failures ----------------------------------------------------------------------------------
def test_a_failed_order_is_repeated_after_growing_pauses_and_then_given_up() -> None:
    hand = hand_with().run()
    order, pauses = order_for(hand), list[float]()
    for pause_s in AGAIN_S:
        actions = hand.send(Failed(order, "no capacity"))
        assert [one["again_s"] for one in logged(actions, "machine_not_delivered")] == [pause_s]
        assert "no capacity" in hand.state.machine_sentences()[1]
        began, actions = hand.now, list[Action]()
        while not orders_in(actions):
            actions = pass_time(hand, 1.0)
        order = only(actions, ReplaceMachine)
        pauses.append(hand.now - began)
    assert pauses == pytest.approx(AGAIN_S, abs=1.5)
    assert logged(hand.send(Failed(order, "no quota")), "machine_not_delivered")
    assert not orders_in(pass_time(hand, AGAIN_S[-1] + 10.0))
    sentence = hand.state.machine_sentences()[1]
    assert sentence == "no other machine: given up after 4 tries: no quota"
    assert "node_returned" in events(boot(hand, 1)), "a person has repaired it"
    assert not hand.state.machine_sentences()
    lose(hand, 1)
    assert orders_in(pass_time(hand, AFTER_S)), "a later loss is another one"


def test_an_engine_that_never_answers_has_failed_and_a_late_answer_does_not_count() -> None:
    hand = hand_with().run()
    order = order_for(hand)
    assert not events(pass_time(hand, ANSWER_LIMIT_S - AFTER_S)), "it may still work on it"
    assert "machine_not_delivered" in events(pass_time(hand, AFTER_S + 2.0))
    assert hand.send(Done(order)) == []
    again = only(pass_time(hand, AGAIN_S[0]), ReplaceMachine)
    assert again != order and hand.send(Done(order)) == []
    assert "machine_delivered" in events(hand.send(Done(again)))


def test_a_machine_that_was_delivered_and_never_reports_is_ordered_again() -> None:
    hand = hand_with().run()
    hand.send(Done(order_for(hand)))
    assert not orders_in(pass_time(hand, RETURN_LIMIT_S - 5.0))
    fields = logged(pass_time(hand, 10.0), "machine_not_delivered")
    assert fields == [{"node": 1, "reason": "it has not reported within 600 s", "again_s": 60}]
    assert only(pass_time(hand, AGAIN_S[0]), ReplaceMachine).node == 1


def test_a_machine_that_the_engine_itself_waits_for_may_take_any_time() -> None:
    hand = hand_with(replaces="condemned", limits=WAITING).run()
    release = only(hand.send(EvictNode(1)), ReleaseNode)
    hand.silent.add(1)
    hand.leave()
    hand.send(Done(only(hand.send(Done(release)) + hand.wait(0.2), ReplaceMachine)))
    actions = pass_time(hand, RETURN_LIMIT_S + 60.0, QUEUED)
    assert not logged(actions, "machine_not_delivered")
    assert QUEUED in hand.state.machine_sentences()[1]


def test_two_machines_lost_at_once_are_both_replaced() -> None:
    hand = hand_with(nodes=4).run()
    lose(hand, 1, 3)
    orders = orders_in(pass_time(hand, AFTER_S))
    assert sorted(order.node for order in orders) == [1, 3]
    hand.send(Failed(orders[0], "no capacity"))
    hand.send(Done(orders[1]))
    states = {node: order.state for node, order in hand.state.machines.orders.items()}
    assert states == {orders[0].node: "failed", orders[1].node: "delivered"}
