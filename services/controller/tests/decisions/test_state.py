"""The life of a generation: what leads to it and what ends it."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from headway.common.decide import Action, Log
from headway.common.wire.messages.driver import Relay, Seals
from headway.common.wire.messages.executor import KillWorker, ReadSeals, StoreOpened, ToWorker
from headway.common.wire.messages.worker import Steer
from headway.controller.decisions.events import BeginGeneration, CommandQueued, DurableFound, Finish
from headway.testkit.simulation.by_hand import Hand, events, only, sent
from headway.testkit.simulation.cluster import Cluster
from headway.testkit.simulation.driver import LIMITS


def test_an_undisturbed_run_needs_one_generation_and_finishes() -> None:
    cluster = Cluster()
    cluster.run(100)
    assert cluster.finished == Finish("finished", "")
    assert len(cluster.journal) == 1
    assert cluster.ranks.repeated == []


def test_a_killed_worker_costs_one_generation_and_at_most_one_completed_step() -> None:
    cluster = Cluster()
    cluster.run(16)
    survivors = {w.name for w in cluster.members() if w.rank != 2}
    next(w for w in cluster.members() if w.rank == 2).kill()
    cluster.run(100)
    assert cluster.finished == Finish("finished", "")
    assert len(cluster.journal) == 2
    assert len(cluster.ranks.repeated) <= 1
    assert survivors <= {w.name for w in cluster.members()}


def test_a_lost_node_is_replaced_by_the_spare_from_the_durable_step() -> None:
    cluster = Cluster()
    cluster.run(25)
    cluster.lose_node(1)
    cluster.run(200)
    assert cluster.finished == Finish("finished", "")
    assert set(cluster.state.fleet.rank_nodes.values()) == {0, 2}
    assert cluster.state.restore.source == "durable"


def test_a_lost_node_without_a_spare_ends_the_run_with_a_reason() -> None:
    cluster = Cluster(limits=dataclasses.replace(LIMITS, wait_for_node_s=2.0))
    cluster.run(10)
    cluster.lose_node(2)
    cluster.run(20)
    cluster.lose_node(1)
    cluster.run(200)
    finish = cluster.finished
    assert finish is not None and finish.outcome == "failed"
    assert finish.detail.startswith("node 1 is lost and no spare is ready; ")


def test_a_restarted_driver_takes_a_healthy_run_as_it_finds_it() -> None:
    cluster = Cluster()
    cluster.run(16)
    cluster.driver.process.kill()
    cluster.run(100)
    assert cluster.finished == Finish("finished", "")
    assert len(cluster.journal) == 1
    assert "adopted" in events(cluster.driver.logs)


def test_the_same_failure_at_the_same_step_stops_the_run_and_names_it() -> None:
    hand = Hand(limits=dataclasses.replace(LIMITS, max_crashes=3)).run()
    actions: list[Action] = []
    for _ in range(3):
        hand.send(hand.left(1, detail="ValueError: labels"))
        hand.leave()
        hand.read(5)
        actions = hand.send(DurableFound(None))
        if hand.state.phase == "beginning":
            hand.begin(hand.wait(1.0) if hand.state.why().startswith("waiting") else actions)
            hand.join(6)
    finish = only(actions, Finish)
    assert finish == Finish("failed", "rank 1 failed: ValueError: labels (3 times at step 5)")


def test_a_survivors_report_is_a_symptom_and_a_later_failure_of_another_rank_is_logged_too() -> (
    None
):
    hand = Hand().run()
    fence = only(hand.send(hand.left(0, "peer", detail="connection reset")), Log)
    assert fence.event == "fence" and fence.fields["is_symptom"]
    assert fence.fields["reason"] == "rank 0 lost a peer: connection reset"
    failed = only(hand.send(hand.left(1, detail="ValueError: labels")), Log)
    assert failed.event == "worker_failed"
    assert (failed.fields["rank"], failed.fields["reason"]) == (1, "ValueError: labels")


SYSTEM = "DistBackendError: NCCL error, unhandled system error"


def test_what_nccl_reports_of_a_death_is_a_symptom_and_blames_nobody() -> None:
    """Over sockets and InfiniBand the survivors of a death get ncclSystemError: counted as their
    own failures, five of them at one step would end the run."""
    hand = Hand().run()
    fence = only(hand.send(hand.left(0, "transport", detail=SYSTEM)), Log)
    assert (fence.event, fence.fields["is_symptom"]) == ("fence", True)
    assert hand.send(hand.left(2, "transport", detail=SYSTEM)) == []
    view = hand.state.fleet.worker("n0w1")
    assert view is not None
    hand.send(hand.gone(0, "n0w1", view.pid))
    assert [cause for cause, _ in hand.state.crash_loop.causes] == ["rank 1 is lost: killed"]
    assert hand.state.crash_loop.count(5) == ""
    assert SYSTEM not in [signature for signature, _, _ in hand.state.crash_loop.crashes]


def test_what_nccl_reports_without_any_death_is_a_failure_whichever_rank_is_first() -> None:
    hand = Hand(limits=dataclasses.replace(LIMITS, max_crashes=3)).run()
    actions: list[Action] = []
    for first in (0, 1, 0):
        fence = only(hand.send(hand.left(first, "transport", detail=SYSTEM)), Log)
        assert fence.fields["reason"] == f"rank {first} failed: {SYSTEM}"
        hand.leave()
        hand.read(5)
        actions = hand.send(DurableFound(None))
        if hand.state.phase == "beginning":
            hand.begin(hand.wait(1.0) if hand.state.why().startswith("waiting") else actions)
            hand.join(6)
    finish = only(actions, Finish)
    assert finish == Finish("failed", f"rank 0 failed: {SYSTEM} (3 times at step 5)")


def test_a_driver_that_takes_over_in_the_middle_of_a_recovery_begins_it_again() -> None:
    hand = Hand(generation=2, epoch=2)
    for node in (0, 1):
        for index, rank in enumerate((2 * node, 2 * node + 1)):
            hand.change(node, index, status="joining", generation=2, rank=rank)
    logs = [a for a in hand.gather() if isinstance(a, Log) and a.event == "fence"]
    assert [log.fields["reason"] for log in logs] == [
        "the driver was restarted in the middle of a recovery"
    ]
    assert hand.state.phase == "leaving"
    hand.leave()
    hand.begin(hand.read() + hand.send(DurableFound(None)))
    assert hand.state.generation == 3


@pytest.mark.parametrize("phase", ["joining", "running", "leaving"])
def test_what_no_restart_mends_ends_the_run_at_once_with_the_ranks_own_words(phase: str) -> None:
    hand = Hand()
    hand.gather()
    hand.read()
    hand.begin(hand.send(DurableFound(None)))
    if phase != "joining":
        hand.join(1)
    if phase == "leaving":
        hand.send(hand.left(0, "peer"))
    assert hand.state.phase == phase
    actions = hand.send(hand.left(1, detail="data/x has changed", is_fatal=True))
    assert only(actions, Finish) == Finish("failed", "rank 1: data/x has changed")


def test_words_of_an_older_generation_change_nothing() -> None:
    hand = Hand().run()
    hand.send(hand.left(1, "peer"))
    hand.leave()
    hand.read(1)
    hand.begin(hand.send(DurableFound(None)))
    hand.join(2)
    late = [
        hand.left(1, "aborted", generation=0),
        Relay(node=0, store=StoreOpened(generation=0, host="old", port=1)),
    ]
    for event in late:
        assert hand.send(event) == []
    assert (hand.state.phase, hand.state.generation) == ("running", 1)


def test_seals_read_for_an_older_generation_do_not_count() -> None:
    hand = Hand().run()
    hand.send(hand.left(1, "peer"))
    hand.leave()
    assert hand.state.phase == "reading"
    for node in (0, 1):
        hand.send(Seals(node=node, generation=-1, sealed={0: (99,), 1: (99,)}))
    assert hand.state.phase == "reading"


def test_the_address_of_the_store_reaches_each_worker_with_its_secret() -> None:
    hand = Hand()
    hand.gather()
    hand.read()
    hand.begin(hand.send(DurableFound(None)))
    for rank, name in hand.state.members.workers.items():
        node = hand.state.fleet.rank_nodes[rank]
        index = [w.worker for w in hand.workers[node]].index(name)
        hand.change(node, index, status="joining", generation=0, rank=rank)
    hand.beat(0)
    opened = StoreOpened(generation=0, host="h", port=5, secret="s")
    orders = [t.message for t in sent(hand.send(Relay(node=0, store=opened)), ToWorker)]
    orders += [t.message for t in sent(hand.beat(1), ToWorker)]
    assert {o.worker for o in orders if o.store_generation == 0} == set(
        hand.state.members.workers.values()
    )
    assert {(o.store_host, o.store_port, o.store_secret) for o in orders} == {("h", 5, "s")}
    assert {(o.run_id, o.epoch) for o in orders} == {("r", 0)}


def test_a_node_that_does_not_tell_its_snapshots_counts_as_having_none() -> None:
    hand = Hand()
    hand.gather()
    hand.send(Seals(node=0, generation=-1, sealed={0: (7,), 1: (7,)}))
    assert hand.state.why() == "waiting for the snapshots of node 1 for 0 s"
    actions = hand.wait(LIMITS.read_timeout_s + 0.5)
    waiting = only(actions, Log)
    assert waiting.event == "waiting"
    assert waiting.fields["reason"] == "waiting for the snapshots of node 1 for 3 s"
    assert len(sent(actions, ReadSeals)) >= 3, "it was not asked again"
    begin = only(hand.send(DurableFound((5, "f"))), BeginGeneration)
    assert begin.restored_step == 5


def test_a_run_that_waits_restored_is_not_fenced_and_gets_its_commands() -> None:
    """As one that was paused when a worker died, or whose first evaluation takes long."""
    hand = Hand()
    hand.gather()
    hand.read()
    hand.begin(hand.send(DurableFound(None)))
    hand.join(0, status="restored")
    actions = hand.send(CommandQueued(Steer(sequence=1, operation="resume")))
    actions += hand.wait(2 * LIMITS.join_timeout_s + 1)
    assert "fence" not in events(actions)
    assert hand.state.phase == "joining"
    steers = [t.message.steer for t in sent(actions, ToWorker) if t.message.steer is not None]
    assert len(steers) > 4, "a command that is not held is sent again"
    assert hand.state.why().startswith("waiting for the first step of ranks 0, 1, 2, 3")


def test_who_does_not_restore_in_time_is_left_behind_by_name() -> None:
    hand = Hand()
    hand.gather()
    hand.read()
    hand.begin(hand.send(DurableFound(None)))
    members = set(hand.state.members.workers.values())
    actions = hand.wait(LIMITS.join_timeout_s + 0.2)
    assert events(actions)[:2] == ["waiting", "fence"]
    assert "ranks 0, 1, 2, 3 did not restore within 8 s" in str(actions)
    killed = {order.message.worker for order in sent(actions, KillWorker)}
    assert killed == members, "who never answered takes no abort"


def test_a_large_state_may_take_long_while_more_and_more_of_it_is_there() -> None:
    """As first weights of 7B parameters, or a checkpoint on a slow disk."""
    hand = Hand()
    hand.gather()
    hand.read()
    hand.begin(hand.send(DurableFound(None)))
    hand.join(0, status="joining")
    for nbytes in range(1, 6):
        for node in (0, 1):
            for index in (0, 1):
                hand.change(node, index, restored_bytes=nbytes)
            hand.beat(node)
        assert "fence" not in events(hand.wait(LIMITS.join_timeout_s - 1))
    hand.join(0, status="restored")
    hand.join(1)
    assert hand.state.phase == "running"


def test_a_rank_without_progress_is_not_excused_by_the_others() -> None:
    hand = Hand()
    hand.gather()
    hand.read()
    hand.begin(hand.send(DurableFound(None)))
    hand.join(0, status="joining")
    hand.change(1, 0, restored_bytes=5)
    hand.beat(1)
    actions: list[Any] = []
    waited_s = 0
    while "fence" not in events(actions) and waited_s < 3 * LIMITS.join_timeout_s:
        for index in (0, 1):
            hand.change(0, index, restored_bytes=1 + waited_s)
        hand.change(1, 1, restored_bytes=1 + waited_s)
        hand.beat(0)
        hand.beat(1)
        actions += hand.wait(1.0)
        waited_s += 1
    assert "rank 2 did not restore within 8 s" in str(actions)
    assert waited_s <= LIMITS.join_timeout_s + 1, "it was given more time than one without a sign"
    killed = {order.message.worker for order in sent(actions, KillWorker)}
    assert not killed, "it is in the generation, so an abort reaches it"


def test_a_cluster_restores_a_state_that_takes_many_times_the_limit() -> None:
    cluster = Cluster()
    cluster.ranks.restore_s = LIMITS.join_timeout_s
    cluster.run(1500)
    assert cluster.finished == Finish("finished", "")
    assert len(cluster.journal) == 1


def test_a_pause_lets_nobody_wait_for_a_rank_that_does_not_restore() -> None:
    hand = Hand()
    hand.gather()
    hand.read()
    hand.begin(hand.send(DurableFound(None)))
    hand.join(0, status="restored")
    hand.change(0, 0, paused=True)
    hand.change(1, 0, status="joining", generation=0, rank=2)
    hand.beat(0)
    hand.beat(1)
    assert hand.state.paused and hand.state.phase == "joining"
    actions = hand.wait(LIMITS.join_timeout_s + 0.2)
    assert {"waiting", "fence"} <= set(events(actions))
    assert "rank 2 did not restore within 8 s" in str(actions)


@pytest.mark.parametrize("commands", [("pause",), ("pause", "resume")])
def test_a_recovery_inside_a_pause_ends_there_unless_the_pause_is_about_to_end(
    commands: tuple[str, ...],
) -> None:
    hand = Hand()
    hand.gather()
    hand.read()
    hand.begin(hand.send(DurableFound(None)))
    hand.join(0, status="restored")
    for sequence, operation in enumerate(commands, 1):
        hand.send(CommandQueued(Steer(sequence=sequence, operation=operation)))
    logged = _logged(hand, status="running", paused=True)
    if commands[-1] == "pause":
        assert hand.state.phase == "running"
        assert logged["stepping"] == {"generation": 0, "step": 0, "paused": True}
        return
    assert "stepping" not in logged, "no rank has stepped"
    logged = _logged(hand, status="restored", paused=False)
    assert "stepping" not in logged, "the pause is over and no rank has stepped"
    logged = _logged(hand, status="running")
    assert logged["stepping"] == {"generation": 0, "step": 0}


def _logged(hand: Hand, **change: Any) -> dict[str, dict[str, Any]]:
    """What is logged when all workers report this change."""
    actions: list[Action] = []
    for node in (0, 1):
        for index in (0, 1):
            hand.change(node, index, **change)
        actions += hand.beat(node)
    return {action.event: action.fields for action in actions if isinstance(action, Log)}


def test_commands_reach_a_worker_in_order_until_it_holds_them_all() -> None:
    cluster = Cluster(loss=0.3, seed=3)
    cluster.command("pause")
    cluster.command("resume")
    cluster.run(600)
    assert cluster.finished == Finish("finished", "")
    assert {w.command for w in cluster.members()} == {2}


def test_any_order_of_kills_and_lost_messages_uses_each_generation_number_once() -> None:
    chance = random.Random(7)
    cluster = Cluster(loss=0.2, seed=7)
    for _ in range(6):
        cluster.run(10)
        if members := cluster.members():
            chance.choice(members).kill()
    cluster.network.calm()
    cluster.run(1500)
    assert cluster.finished == Finish("finished", "")
    generations = [begun.generation for begun in cluster.journal]
    assert generations == sorted(set(generations))
