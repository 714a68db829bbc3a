"""A node that is drained leaves after a checkpoint, at the latest when its notice is over."""

from __future__ import annotations

from headway.common.decide import Action, Done, Failed
from headway.common.wire.messages.executor import SaveSnapshots
from headway.common.wire.messages.worker import Steer
from headway.controller.decisions.events import (
    AwaitCheckpoint,
    CommandQueued,
    DrainNode,
    DurableFound,
    Memory,
    ReleaseNode,
    Send,
)
from headway.testkit.simulation.by_hand import Hand, events, only

NOTICE_S = 30.0


def _drain(hand: Hand, node: int = 1, notice_s: float = NOTICE_S) -> list[Action]:
    return hand.send(DrainNode(node, notice_s))


def test_the_spare_takes_over_once_a_newer_checkpoint_is_complete() -> None:
    hand = Hand().run(step=30)
    actions = _drain(hand)
    assert events(actions) == ["draining"]
    question = only(actions, AwaitCheckpoint)
    assert question.after == 30
    assert hand.send(Failed(question, "the newest complete checkpoint is of step 20")) == []
    assert hand.state.phase == "running" and hand.state.fleet.rank_nodes[2] == 1, (
        "it trains on meanwhile"
    )
    again = only(hand.wait(1.0), AwaitCheckpoint)
    actions = hand.send(Done(again))
    assert events(actions) == ["evicted", "node_lost", "fence"]
    assert only(actions, ReleaseNode).node == 1
    hand.silent.add(1)
    hand.workers[1] = []
    hand.leave()
    hand.gather()
    assert set(hand.state.fleet.rank_nodes.values()) == {0, 2}
    assert hand.state.memory.drains == ()


def test_it_costs_no_crash() -> None:
    hand = Hand().run(step=30)
    _drain(hand, notice_s=0.0)
    assert hand.state.memory.crashes == () and hand.state.memory.causes == ()


def test_without_a_checkpoint_the_node_leaves_when_its_notice_is_over() -> None:
    hand = Hand().run(step=30)
    _drain(hand, notice_s=5.0)
    assert "evicted" not in events(hand.wait(4.5))
    assert "evicted" in events(hand.wait(1.0))


def test_an_answer_about_an_older_checkpoint_lets_a_later_drain_wait() -> None:
    hand = Hand(nodes=4).run(step=30)
    question = only(_drain(hand), AwaitCheckpoint)
    hand.join(40)
    assert only(_drain(hand, node=0), AwaitCheckpoint).after == 40
    actions = hand.send(Done(question))
    assert [one.node for one in actions if isinstance(one, ReleaseNode)] == [1]
    assert [node for node, *_ in hand.state.memory.drains] == [0]


def test_a_node_without_ranks_leaves_at_once() -> None:
    hand = Hand().run(step=30)
    actions = _drain(hand, node=2)
    assert events(actions) == ["draining", "evicted", "node_lost"]
    assert hand.state.phase == "running"


def test_without_a_spare_it_is_refused() -> None:
    hand = Hand(nodes=2).run(step=30)
    assert hand.state.drain_refusal(1) == "no spare is ready for node 1"
    assert events(_drain(hand)) == ["drain_refused"]
    assert hand.state.memory.drains == ()


def test_a_second_notice_for_the_same_node_can_only_shorten_the_time() -> None:
    hand = Hand().run(step=30)
    _drain(hand, notice_s=60.0)
    assert hand.state.drain_refusal(1) == "", "a command that was sent again is carried out once"
    assert "draining" not in events(_drain(hand, notice_s=90.0))
    [(node, _, notice_s)] = hand.state.memory.drains
    assert (node, notice_s) == (1, 60.0)
    _drain(hand, notice_s=5.0)
    assert "evicted" in events(hand.wait(6.0))


def test_a_spare_that_was_lost_meanwhile_is_waited_for_until_the_notice_is_over() -> None:
    hand = Hand().run(step=30)
    question = only(_drain(hand, notice_s=10.0), AwaitCheckpoint)
    hand.send(DrainNode(2, 0.0))
    assert "evicted" not in events(hand.send(Done(question)))
    assert hand.state.phase == "running"
    assert "eviction_refused" in events(hand.wait(11.0)), "it says that nobody can take over"
    assert hand.state.phase == "running" and hand.state.memory.drains == ()


def test_a_spare_takes_over_from_one_node_only() -> None:
    hand = Hand().run(step=30)
    _drain(hand)
    assert hand.state.drain_refusal(0) == "no spare is ready for node 0 besides those for node 1"
    assert events(_drain(hand, node=0)) == ["drain_refused"]


def _pause(hand: Hand) -> None:
    for node in (0, 1):
        for index in (0, 1):
            hand.change(node, index, paused=True)
        hand.beat(node)


def test_in_a_pause_the_stores_write_what_is_in_memory_and_the_node_leaves_after_that() -> None:
    hand = Hand().run(step=30)
    _pause(hand)
    actions = [*_drain(hand), *hand.wait(0.2)]
    orders = [one for one in actions if isinstance(one, Send)]
    assert {one.node for one in orders if isinstance(one.message, SaveSnapshots)} == {0, 1}
    assert "saving_from_memory" in events(actions)
    question = only(actions, AwaitCheckpoint)
    assert question.after == 28, "memory holds the step before the newest at least"
    assert "evicted" in events(hand.send(Done(question)))


def test_ranks_that_do_not_step_are_not_waited_for() -> None:
    """As while they evaluate or compile: the checkpoint that they were asked for comes too late."""
    hand = Hand().run(step=30)
    _drain(hand)
    actions = hand.wait(1.0)
    assert "saving_from_memory" not in events(actions)
    assert hand.state.draining() == ("node 1 leaves after a checkpoint, at the latest in 29 s")
    actions = hand.wait(5.0)
    assert events(actions).count("saving_from_memory") == 1
    assert [a.after for a in actions if isinstance(a, AwaitCheckpoint)][-1] == 28


def test_a_drain_in_the_first_step_of_a_generation_needs_the_step_that_it_began_with() -> None:
    hand = Hand()
    hand.gather()
    hand.read(20)
    hand.begin(hand.send(DurableFound(None)))
    assert hand.state.phase == "joining"
    assert hand.state.drain_refusal(1) == ""
    actions = [*_drain(hand), *hand.wait(0.2)]
    assert only(actions, AwaitCheckpoint).after == 19
    assert "saving_from_memory" in events(actions)


def test_with_fewer_snapshots_than_steps_an_older_step_is_the_newest_in_memory() -> None:
    hand = Hand(snapshot_every=8).run(step=30)
    _pause(hand)
    assert only([*_drain(hand), *hand.wait(0.2)], AwaitCheckpoint).after == 23


def test_a_stop_that_waits_for_an_evaluation_has_its_state_written_meanwhile() -> None:
    hand = Hand().run(step=30)
    assert "saving_from_memory" not in events(hand.wait(5.0))
    hand.send(CommandQueued(Steer(sequence=1, operation="stop")))
    actions = hand.wait(5.0)
    assert events(actions).count("saving_from_memory") == 1
    orders = [a for a in actions if isinstance(a, Send) and isinstance(a.message, SaveSnapshots)]
    assert 2 <= len(orders) <= 10, "it is repeated, with growing pauses"


def test_a_run_that_went_back_makes_the_checkpoint_at_an_earlier_step() -> None:
    hand = Hand().run(step=30)
    _drain(hand)
    hand.send(hand.left(0))
    hand.leave()
    hand.gather()
    hand.read(20)
    hand.begin(hand.send(DurableFound(None)))
    hand.join(22)
    found = [one for one in hand.wait(15.0) if isinstance(one, AwaitCheckpoint)][-1]
    assert found.after == 20
    assert "evicted" in events(hand.send(Done(found)))


def test_a_run_that_is_resumed_on_fewer_nodes_forgets_the_others() -> None:
    hand = Hand(nodes=2, memory=Memory(drains=((2, 30, NOTICE_S),)))
    hand.wait(1.0)
    assert hand.state.memory.drains == ()


def test_a_node_that_ends_before_is_forgotten() -> None:
    hand = Hand().run(step=30)
    _drain(hand)
    hand.silent.add(1)
    while hand.state.status_of(1) != "lost":
        hand.wait(1.0)
    hand.wait(0.2)
    assert hand.state.memory.drains == ()


def test_a_successor_waits_for_the_same_checkpoint() -> None:
    hand = Hand().run(step=30)
    _drain(hand)
    successor = Hand(memory=hand.state.memory, generation=hand.state.generation, epoch=1)
    successor.workers, successor.step = hand.workers, 31
    successor.gather()
    assert successor.state.phase == "running"
    question = only(successor.wait(0.2), AwaitCheckpoint)
    assert question.after == 30
    assert "evicted" in events(successor.send(Done(question)))


def test_a_failure_in_between_does_not_lose_it() -> None:
    hand = Hand().run(step=30)
    _drain(hand)
    hand.send(hand.left(0))
    hand.leave()
    hand.gather()
    hand.read(29, 30)
    hand.begin(hand.send(DurableFound(None)))
    hand.join(31)
    (found, *_) = [one for one in hand.wait(15.0) if isinstance(one, AwaitCheckpoint)]
    assert found.after == 29, "its ranks do not step now: the stores write step 30"
