"""Nodes that are slow, silent, lost, evicted, unable to fork, or back again;
and a driver that slept."""

from __future__ import annotations

import pytest
from headway.common.decide import Done, Failed, Log
from headway.common.wire.messages.driver import NodeBeat, WorkerGone
from headway.common.wire.messages.executor import KillWorker
from headway.controller.decisions.events import (
    DurableFound,
    EvictNode,
    ExecutorEnded,
    Finish,
    Memory,
    NodeRebooted,
    ReleaseNode,
    Remember,
    RestartNode,
    Tick,
)
from headway.testkit.simulation.by_hand import Hand, events, only, sent
from headway.testkit.simulation.driver import LIMITS


def _lose(hand: Hand, node: int) -> None:
    """Silence until the node is given up; its workers stay as they are. Nobody steps."""
    hand.silent.add(node)
    actions = hand.wait(LIMITS.node_silent_s + 0.2)
    hand.send(Done(only(actions, RestartNode)))
    hand.wait(LIMITS.node_lost_s + 2.0)
    assert hand.state.status_of(node) == "lost"
    hand.silent.discard(node)


def test_a_driver_that_slept_holds_no_silence_against_the_nodes() -> None:
    hand = Hand().run()
    hand.wait(2.0)
    hand.now += 60.0  # blocked: beats wait in its socket, and its timers come first
    actions = hand.send(Tick())
    for node in hand.workers:
        actions += hand.pulse(node) + hand.send(Tick())
    assert actions == []
    assert [hand.state.status_of(node) for node in hand.workers] == ["active", "active", "spare"]


def test_a_driver_that_is_slow_at_every_beat_holds_no_silence_against_the_nodes() -> None:
    hand = Hand(nodes=4).run()
    actions = []
    for _ in range(20):
        for node in hand.workers:
            hand.now += 5.0
            actions += hand.pulse(node)
        actions += hand.send(Tick())
    assert events(actions) == []


def test_silence_of_a_node_whose_ranks_step_is_no_reason_to_give_it_up() -> None:
    hand = Hand().run()
    hand.silent.add(1)
    actions = []
    for _ in range(60):
        hand.step += 1  # every rank takes part in a step
        new = hand.wait(0.5)
        for restart in [action for action in new if isinstance(action, RestartNode)]:
            hand.send(Done(restart))
        actions += new
    assert "node_silent" in events(actions)
    assert "node_lost" not in events(actions)
    assert hand.state.phase == "running"


def test_a_node_that_was_started_late_has_time_to_report_before_it_is_given_up() -> None:
    hand = Hand().run()
    hand.silent.add(1)
    restart = only(hand.wait(LIMITS.node_lost_s + 3.0), RestartNode)
    hand.send(Done(restart))
    assert "node_lost" not in events(hand.wait(LIMITS.node_silent_s - 0.5))
    assert "node_lost" in events(hand.wait(1.0))


def test_a_second_attempt_to_start_a_node_is_not_waited_for() -> None:
    """Each may take longer than the one before, as with Slurm."""
    hand = Hand().run()
    hand.silent.add(1)
    restart = only(hand.wait(LIMITS.node_silent_s + 0.2), RestartNode)
    again = hand.send(Failed(restart, "it did not respond within 4 s")) + hand.wait(1.0)
    assert only(again, RestartNode) == restart
    assert "node_lost" not in events(hand.wait(LIMITS.node_lost_s - LIMITS.node_silent_s - 2.0))
    assert "node_lost" in events(hand.wait(1.5))


def test_a_node_that_has_not_reported_is_not_given_up_for_having_no_worker() -> None:
    hand = Hand()
    hand.silent.add(1)
    hand.beat(0)
    hand.beat(2)
    actions = hand.wait(LIMITS.gather_timeout_s + 1.0)
    assert only(actions, RestartNode) == RestartNode(1)
    assert events(actions) == ["node_silent", "waiting"]


def test_a_node_whose_executor_was_started_again_keeps_its_ranks_and_generation() -> None:
    hand = Hand().run()
    hand.silent.add(1)
    hand.send(Done(only(hand.wait(LIMITS.node_silent_s + 0.2), RestartNode)))
    assert hand.state.status_of(1) == "silent"
    hand.silent.clear()
    hand.incarnation[1] += 1
    hand.versions[1] = 0
    why = "it was killed by SIGKILL"
    logged = only(hand.beat(1, restarted_for=why), Log)
    fields = {"node": 1, "reason": why, "is_training": True}
    assert (logged.event, logged.fields) == ("executor_restarted", fields)
    assert "executor_restarted" not in events(hand.wait(20.0)), "once"
    assert (hand.state.phase, hand.state.generation) == ("running", 0)
    assert hand.state.status_of(1) == "active"


def test_after_a_silence_a_full_beat_is_asked_for_although_all_numbers_are_as_before() -> None:
    """A new machine may count incarnation and version, and even pids, as the one before did."""
    hand = Hand().run()
    hand.silent.add(1)
    hand.wait(LIMITS.node_silent_s + 0.2)
    hand.pulse(1)
    assert hand.state.known_version(1) == -1
    hand.workers[1] = [hand.idle(1, 7)]
    hand.versions[1] -= 1
    assert "fence" in events(hand.beat(1))


def test_an_executor_that_is_known_to_have_ended_is_started_without_waiting_for_silence() -> None:
    hand = Hand().run()
    actions = hand.send(ExecutorEnded(1))
    assert only(actions, RestartNode) == RestartNode(1)
    assert [a for a in hand.send(ExecutorEnded(1)) if isinstance(a, RestartNode)] == []


def test_a_machine_that_was_rebooted_gives_its_ranks_to_a_spare_at_once_if_one_is_ready() -> None:
    hand = Hand().run()
    assert "node_lost" in events(hand.send(NodeRebooted(1)))
    assert "node_replaced" in events(hand.wait(LIMITS.leave_timeout_s + 1.0))
    assert set(hand.state.fleet.rank_nodes.values()) == {0, 2}
    assert "node_lost" not in events(hand.send(NodeRebooted(0))), "no other spare is ready"


@pytest.mark.parametrize("generation", [-1, 6], ids=["first", "later"])
def test_a_lost_node_that_reports_again_becomes_a_spare_and_its_old_workers_are_killed(
    generation: int,
) -> None:
    hand = Hand(generation=generation).run()
    old = [view.worker for view in hand.workers[1] if view.rank >= 0]
    _lose(hand, 1)
    assert set(hand.state.fleet.rank_nodes.values()) == {0, 2}
    actions = hand.beat(1)
    assert "node_returned" in events(actions)
    assert hand.state.status_of(1) == "spare"
    assert only(actions, Remember).memory.lost == ()
    actions += hand.wait(1.0)
    killed = {order.message.worker for order in sent(actions, KillWorker) if order.node == 1}
    assert killed == set(old)
    hand.workers[1] = [hand.idle(1, 7)]
    actions = hand.beat(1) + hand.wait(2.0)
    assert not [order for order in sent(actions, KillWorker) if order.node == 1]


def test_a_step_counts_only_with_the_full_beat_that_it_follows() -> None:
    hand = Hand().run(3)
    hand.step = 50
    for node in (0, 1):
        hand.versions[node] += 1  # the full beat of this version is lost on the way
        hand.pulse(node)
    assert hand.state.step == 3
    hand.join(50)
    assert hand.state.step == 50


def test_a_name_that_is_used_again_on_a_new_machine_is_not_killed() -> None:
    hand = Hand().run()
    _lose(hand, 1)
    hand.workers[1] = [hand.idle(1, index) for index in range(3)]
    for index in range(3):
        hand.change(1, index, pid=9000 + index)
    actions = hand.beat(1) + hand.wait(1.0)
    assert not [order for order in sent(actions, KillWorker) if order.node == 1]
    assert hand.state.status_of(1) == "spare"


def test_beats_of_an_executor_that_has_ended_change_nothing() -> None:
    hand = Hand().run()
    hand.incarnation[1] = 2
    hand.versions[1] = 0
    hand.beat(1)
    late = NodeBeat(node=1, pid=1, incarnation=1, version=99, workers=(), services={}, run_id="r")
    assert hand.send(late) == []
    assert hand.state.phase == "running"
    assert hand.state.known_version(1) == 1


def test_an_older_full_beat_that_was_overtaken_changes_nothing() -> None:
    hand = Hand().run()
    version = hand.versions[1]
    hand.beat(1)
    assert hand.beat(1, version=version, workers=()) == []
    assert hand.state.phase == "running"


def test_beats_of_another_run_change_nothing() -> None:
    hand = Hand().run()
    assert hand.beat(1, run_id="another", workers=()) == []
    assert hand.state.phase == "running"


def test_a_pulse_asks_for_a_full_beat_until_the_driver_holds_that_version() -> None:
    hand = Hand()
    assert hand.state.known_version(0) == -1
    hand.pulse(0)
    assert hand.state.known_version(0) == -1
    hand.beat(0)
    assert hand.state.known_version(0) == hand.versions[0]


def test_a_worker_that_its_node_does_not_report_any_more_is_lost() -> None:
    hand = Hand().run()
    hand.workers[1] = hand.workers[1][1:]
    assert {"worker_lost", "fence"} <= set(events(hand.beat(1)))


def test_the_end_of_an_earlier_process_of_the_same_name_changes_nothing() -> None:
    hand = Hand().run()
    gone = WorkerGone(
        node=0, worker=hand.state.members.workers[0], pid=1, rank=0, generation=0, reason="killed"
    )
    assert hand.send(gone) == []
    assert hand.state.phase == "running"


def test_a_node_that_cannot_fork_is_given_up_for_a_spare_and_returns_when_it_can() -> None:
    hand = Hand()
    hand.workers[0] = []
    hand.trouble[0] = "it cannot fork (the zygote restarts)"
    hand.gather()
    why = "node 0 has no worker for ranks 0, 1: it cannot fork (the zygote restarts)"
    assert hand.state.why() == why
    actions = hand.wait(LIMITS.gather_timeout_s + 0.5)
    assert events(actions) == ["waiting", "node_lost", "node_replaced"]
    (waiting,) = [a for a in actions if isinstance(a, Log) and a.event == "waiting"]
    assert str(waiting.fields["reason"]).startswith(why)
    assert hand.state.phase == "reading"
    assert "node_returned" not in events(hand.beat(0))
    hand.trouble.clear()
    hand.workers[0] = [hand.idle(0, 5)]
    assert "node_returned" in events(hand.beat(0))


def test_a_node_whose_workers_die_one_after_the_other_is_given_up_too() -> None:
    hand = Hand()
    hand.gather()
    logged: list[str] = []
    for number in range(20):
        for index in range(3):
            view = hand.workers[0][index]
            logged += events(hand.send(hand.gone(0, view.worker, view.pid)))
        hand.workers[0] = []
        logged += events(hand.beat(0) + hand.wait(0.5))
        hand.workers[0] = [hand.idle(0, 10 * number + index) for index in range(3)]
        logged += events(hand.beat(0) + hand.wait(0.5))
    assert "node_replaced" in logged
    assert set(hand.state.fleet.rank_nodes.values()) == {1, 2}


def test_without_a_spare_a_node_that_cannot_fork_is_restarted_once_and_waited_for_aloud() -> None:
    hand = Hand(nodes=2)
    hand.workers[0] = []
    hand.gather()
    actions = hand.wait(4 * LIMITS.gather_timeout_s + 0.5)
    assert only(actions, RestartNode) == RestartNode(0)
    assert events(actions) == ["waiting"] * 4


def test_an_evicted_node_is_released_until_done_and_returns_when_it_is_started_again() -> None:
    hand = Hand().run()
    actions = hand.send(EvictNode(1))
    assert events(actions)[:2] == ["evicted", "node_lost"]
    release = only(actions, ReleaseNode)
    hand.send(Failed(release, "no answer"))
    assert only(hand.wait(1.0), ReleaseNode) == release
    assert hand.state.memory.evicted == (1,)
    hand.beat(1)  # it has not ended yet
    assert hand.state.status_of(1) == "lost"
    hand.send(Done(release))
    hand.beat(1)  # its last beat was still in the socket
    assert hand.state.status_of(1) == "lost"
    assert not [a for a in hand.wait(30.0) if a == RestartNode(1)]
    hand.incarnation[1] += 1
    hand.versions[1] = 0
    hand.workers[1] = [hand.idle(1, 9)]
    assert "node_returned" in events(hand.beat(1))
    assert hand.state.status_of(1) == "spare"


def test_an_eviction_without_a_spare_is_refused_by_name() -> None:
    hand = Hand(nodes=2).run()
    assert hand.state.eviction_refusal(1) == "no spare is ready for node 1"
    assert events(hand.send(EvictNode(1))) == ["eviction_refused"]
    assert hand.state.eviction_refusal(7) == "node 7 is not in the run"


def test_a_successor_keeps_lost_and_evicted_nodes_out_and_releases_what_was_not() -> None:
    memory = Memory(
        lost=(2,),
        evicted=(1, 3),
        released=(3,),
        excluded=((1, "evicted", -1, -1), (3, "evicted", -1, -1)),
        losses=((1, 1), (2, 1), (3, 1)),
    )
    hand = Hand(nodes=5, rank_nodes={0: 0, 1: 0, 2: 4, 3: 4}, memory=memory)
    assert [hand.state.status_of(n) for n in range(5)] == [
        "silent",
        "lost",
        "lost",
        "lost",
        "silent",
    ]
    assert hand.state.memory == memory
    hand.silent = {1, 2, 3}
    assert {a for a in hand.wait(0.2) if isinstance(a, ReleaseNode)} == {ReleaseNode(1)}
    assert "node_returned" in events(hand.beat(2))


def test_a_worker_of_a_silent_node_is_not_ended_for_an_order_that_it_never_got() -> None:
    hand = Hand(nodes=2).run()
    hand.silent.add(1)
    hand.send(Done(only(hand.wait(LIMITS.node_silent_s + 0.2), RestartNode)))
    hand.send(hand.left(0, "peer"))
    hand.change(0, 0, status="left")
    hand.change(0, 1, status="left")
    hand.beat(0)
    hand.wait(3 * LIMITS.leave_timeout_s)
    hand.silent.clear()
    hand.incarnation[1] += 1
    hand.versions[1] = 0
    actions = hand.beat(1) + hand.wait(0.5)
    assert not sent(actions, KillWorker)
    assert hand.state.phase == "leaving", "now it is asked"
    hand.leave()
    hand.read(1)
    assert hand.send(DurableFound(None))
    assert not hand.state.outcome
    assert not [a for a in actions if isinstance(a, Finish)]


def test_who_was_told_is_ended_while_a_silent_nodes_workers_are_not() -> None:
    hand = Hand(nodes=2).run()
    hand.silent.add(1)
    hand.wait(LIMITS.node_silent_s + 0.2)
    actions = hand.send(hand.left(0, "peer")) + hand.wait(LIMITS.leave_timeout_s + 1.0)
    lost = [a.fields["worker"] for a in actions if isinstance(a, Log) and a.event == "worker_lost"]
    assert lost == ["n0w1"]


def test_a_successor_ends_workers_that_hold_groups_of_an_older_generation() -> None:
    hand = Hand(generation=3)
    for rank in range(4):
        how = {"status": "running", "generation": 3, "rank": rank, "step": 9}
        hand.change(rank // 2, rank % 2, **how)
    hand.change(1, 2, status="running", generation=2, rank=3)
    hand.gather()
    assert hand.state.phase == "running"
    assert {t.message.worker for t in sent(hand.wait(0.5), KillWorker)} == {"n1w2"}
    assert hand.state.phase == "running"


def test_lost_nodes_that_wait_for_a_silent_spare_are_named_in_one_sentence() -> None:
    hand = Hand().run()
    hand.silent |= {0, 1, 2}
    actions = hand.wait(LIMITS.node_silent_s + 0.2)
    restarts = {a.node: a for a in actions if isinstance(a, RestartNode)}
    hand.send(Failed(restarts[1], "the machine was taken away", is_final=True))
    hand.leave()
    hand.wait(0.2)
    assert hand.state.why().startswith("node 1 is lost and no spare is ready; waited for")
    hand.send(Failed(restarts[0], "the machine was taken away", is_final=True))
    assert hand.state.why().startswith("nodes 0, 1 are lost and no spare is ready; waited for")
