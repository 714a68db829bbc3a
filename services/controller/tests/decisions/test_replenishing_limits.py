"""Another machine for a lost one: limits, drivers that take over, the end of the run, any order."""

from __future__ import annotations

import dataclasses
import random

import pytest
from headway.common.decide import Done, Failed
from headway.controller.decisions.events import (
    EvictNode,
    Finish,
    Memory,
    ReleaseNode,
    ReplaceMachine,
    RestartNode,
    VerdictReceived,
)
from headway.controller.decisions.machines.machine_orders import AGAIN_S, DAY_S
from headway.controller.decisions.machines.replenishing import RETURN_LIMIT_S
from headway.launch.engine import Replaces
from headway.testkit.simulation.by_hand import Hand, events, only
from headway.testkit.simulation.driver import LIMITS

from services.controller.tests.decisions.replaced import (
    AFTER_S,
    WAIT_S,
    WAITING,
    boot,
    hand_with,
    logged,
    lose,
    order_for,
    orders_in,
    pass_time,
)


# ---- limits ------------------------------------------------------------------------------------
def test_a_day_has_a_limit_that_a_successor_keeps_and_that_ends_with_the_day() -> None:
    few = dataclasses.replace(WAITING, max_replacements=2)
    hand = hand_with(nodes=5, limits=few).run()
    lose(hand, 2, 3, 4)
    actions = pass_time(hand, 2 * AFTER_S)
    assert len(orders_in(actions)) == 2
    [refused] = logged(actions, "machine_not_ordered")
    why = "2 were ordered within a day (recovery.max_replacements)"
    assert refused == {"node": 4, "reason": why}
    assert hand.state.machine_sentences()[4] == f"no other machine is ordered: {why}"
    for order in orders_in(actions):
        hand.send(Failed(order, "no capacity"))
    assert not orders_in(pass_time(hand, 2 * AGAIN_S[0]))
    assert hand.state.machine_sentences()[2] == f"no other machine: no capacity; {why}"
    unix_s = hand.start.unix_s + 600.0
    again = Hand(nodes=5, limits=few, replaces="lost", memory=hand.state.memory, unix_s=unix_s)
    again.silent |= {2, 3, 4}
    assert not orders_in(pass_time(again, 2 * AFTER_S))
    unix_s += DAY_S
    late = Hand(nodes=5, limits=few, replaces="lost", memory=again.state.memory, unix_s=unix_s)
    late.silent |= {2, 3, 4}
    assert len(orders_in(pass_time(late, 2 * AFTER_S))) == 2


def _waited_s(hand: Hand, seconds: float) -> float:
    before = hand.state.waited_s
    pass_time(hand, seconds)
    return hand.state.waited_s - before


def test_the_wait_for_a_node_does_not_count_while_a_machine_may_come() -> None:
    hand = hand_with(nodes=2, limits=dataclasses.replace(WAITING, max_replacements=4)).run()
    lose(hand, 1)
    order = only(pass_time(hand, AFTER_S), ReplaceMachine)
    for number in range(1 + len(AGAIN_S)):
        if number:
            order = only(pass_time(hand, AGAIN_S[number - 1] + 2.0), ReplaceMachine)
        assert _waited_s(hand, 20.0) == 0.0, "on order"
        if number == 1:
            hand.send(Done(order))
            assert _waited_s(hand, RETURN_LIMIT_S + 2.0) == 0.0, "it starts"
        else:
            hand.send(Failed(order, "no quota"))
    assert _waited_s(hand, 20.0) == pytest.approx(20.0), "given up"
    assert "no other machine: given up after 4 tries: no quota; waited for" in hand.state.why()
    actions = pass_time(hand, WAIT_S + LIMITS.choose_timeout_s)
    [finish, *_] = [one for one in actions if isinstance(one, Finish)]
    assert "no other machine: given up after 4 tries" in finish.detail


def test_the_wait_counts_once_the_days_number_is_used_up() -> None:
    hand = hand_with(nodes=2, limits=dataclasses.replace(WAITING, max_replacements=1)).run()
    hand.send(Failed(order_for(hand), "no quota"))
    assert _waited_s(hand, 20.0) == pytest.approx(20.0)
    assert "1 were ordered within a day" in hand.state.why()


# ---- drivers and ends --------------------------------------------------------------------------
def _successor(hand: Hand, after_s: float = 5.0) -> Hand:
    """A driver that takes over; the node's machine stays silent."""
    now = hand.state.unix_now + after_s
    ranks = dict(hand.state.fleet.rank_nodes)
    again = Hand(
        rank_nodes=ranks, replaces="lost", memory=hand.state.memory, unix_s=now, limits=LIMITS
    )
    again.silent |= hand.silent
    for node in again.workers.keys() - again.silent:
        again.beat(node)
    return again


def test_under_a_driver_that_takes_over_an_order_counts_as_failed_and_may_run_twice() -> None:
    hand = hand_with().run()
    order_for(hand)
    again = _successor(hand)
    assert again.state.status_of(1) == "lost"
    assert "the driver that had ordered it has ended" in again.state.machine_sentences()[1]
    actions = pass_time(again, AGAIN_S[0] - 2.0)
    assert not orders_in(actions) and RestartNode(1) in actions, "the command may have succeeded"
    assert only(pass_time(again, 3.0), ReplaceMachine).node == 1
    assert again.state.machines.num_today(again.state.unix_now) == 2
    early = _successor(hand)
    assert "node_returned" in events(boot(early, 1))
    assert not orders_in(pass_time(early, 2 * AGAIN_S[0]))


def test_a_successor_continues_orders_that_were_not_under_way() -> None:
    hand = hand_with().run()
    hand.send(Failed(order_for(hand), "no capacity"))
    pass_time(hand, 20.0)
    again = _successor(hand)
    assert not orders_in(pass_time(again, AGAIN_S[0] - 20.0 - 5.0 - 2.0))
    order = only(pass_time(again, 4.0), ReplaceMachine)
    again.send(Done(order))
    third = _successor(again)
    assert not orders_in(pass_time(third, RETURN_LIMIT_S - 5.0)), "it is waited for anew"
    assert "machine_not_delivered" in events(pass_time(third, 10.0))


def test_a_successor_restores_what_kept_the_node_out() -> None:
    hand = hand_with().run()
    hand.send(VerdictReceived("v", 1, "gpu_fault", "replace_node", 2))
    release = only(hand.wait(0.2), ReleaseNode)
    hand.silent.add(2)
    only(hand.send(Done(release)) + hand.wait(0.2), ReplaceMachine)
    again = _successor(hand)
    node = again.state.fleet.nodes[2]
    assert (node.exclusion, node.is_released) == ("verdict", True)
    assert RestartNode(2) not in pass_time(again, AGAIN_S[0] - 2.0), "it is a bad machine"


def test_a_run_that_is_resumed_begins_without_orders_and_keeps_the_days_number() -> None:
    hand = hand_with().run()
    order_for(hand)
    memory = hand.state.memory.reopened()
    assert memory.machine_orders == () and len(memory.machines_ordered) == 1


@pytest.mark.parametrize("replaces", ["lost", "condemned"])
def test_a_run_that_is_resumed_orders_nothing_for_machines_taken_out_before(
    replaces: Replaces,
) -> None:
    """On Slurm the node has another machine now, which is a healthy one."""
    hand = hand_with(replaces=replaces).run()
    hand.silent.add(2)
    release = only(hand.send(EvictNode(2)), ReleaseNode)
    assert only(hand.send(Done(release)) + hand.wait(0.2), ReplaceMachine).node == 2
    resumed = Hand(
        rank_nodes=dict(hand.state.fleet.rank_nodes),
        replaces=replaces,
        memory=hand.state.memory.reopened(),
        unix_s=hand.state.unix_now,
        limits=LIMITS,
    )
    assert not orders_in(pass_time(resumed, 5.0))
    assert "node_returned" in events(boot(resumed, 2))
    assert 2 not in resumed.state.machines.leaving


@pytest.mark.parametrize("is_done", [False, True])
def test_an_answer_after_the_end_of_the_run_changes_nothing(is_done: bool) -> None:
    hand = hand_with().run()
    order = order_for(hand)
    hand.state.finish("stopped")
    answer = Done(order) if is_done else Failed(order, "no capacity")
    assert [one for one in hand.send(answer) if not isinstance(one, Finish)] == []
    assert not orders_in(pass_time(hand, 5.0))


# ---- any order of events -----------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(6))
def test_in_any_history_orders_are_few_and_one_at_a_time_for_a_node(seed: int) -> None:
    """Machines fall silent, come back, are condemned and evicted; the engine answers at random."""
    chance = random.Random(seed)
    limits = dataclasses.replace(LIMITS, max_replacements=6, wait_for_node_s=0.0)
    hand = hand_with(nodes=4, limits=limits).run()
    asked: dict[int, ReplaceMachine] = {}
    number = 0
    for _ in range(60):
        actions = pass_time(hand, chance.choice((1, 5, 30)))
        node = chance.randrange(4)
        match chance.choice(("silent", "boot", "evict", "verdict", "answer", "answer", "release")):
            case "silent":
                hand.silent.add(node)
            case "boot" if node in hand.silent:
                actions += boot(hand, node)
            case "evict":
                actions += hand.send(EvictNode(node))
            case "verdict":
                verdict = VerdictReceived(f"{hand.now}", 1, "gpu_fault", "replace_node", node)
                actions += hand.send(verdict)
            case "answer" if asked:
                order = asked.pop(chance.choice(sorted(asked)))
                is_done = chance.random() < 0.5
                actions += hand.send(Done(order) if is_done else Failed(order, "no capacity"))
            case "release":
                actions += hand.send(Done(ReleaseNode(node)))
            case _:
                pass
        for order in orders_in(actions):
            known = hand.state.machines.orders.get(order.node)
            is_newest = known is not None and known.number == order.number
            assert not is_newest or known is None or known.tries <= 1 + len(AGAIN_S)
            asked[order.node] = order
            number += 1
        for one in list(asked):  # an order ends by its answer, or by the engine's silence
            known = hand.state.machines.orders.get(one)
            assert known is not None, f"the order for node {one} was forgotten"
        assert number <= 6, "of a day"
        assert hand.state.memory == hand.state._memory
        kept: Memory = hand.state.memory
        again = Hand(nodes=4, limits=limits, replaces="lost", memory=kept, unix_s=2e9)
        assert again.state.machines.orders.keys() == hand.state.machines.orders.keys()
    assert number, "something was ordered"
