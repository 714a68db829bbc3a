"""The driver's decisions, event by event and against a model of a cluster that loses nearly everything."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import pytest
from headway.common.wire.messages.driver import Relay, Seals
from headway.common.wire.messages.executor import (
    LeftGeneration,
    StoreOpened,
)
from headway.common.wire.messages.worker import Restore, Steer
from headway.testkit.trainer.cluster_model import LIMITS, FakeCluster
from headway.trainer.control.decisions import choose_restore
from headway.trainer.control.events import (
    Action,
    BeginGeneration,
    DurableFound,
    Finish,
    Hopeless,
    Log,
    NotBegun,
    Suspicion,
    Tell,
)
from headway.trainer.control.state import RunState
from hypothesis import given, settings
from hypothesis import strategies as st


def test_an_undisturbed_run_needs_one_generation_and_finishes() -> None:
    cluster = FakeCluster()
    cluster.run(100)
    assert cluster.finished == Finish("finished", "")
    assert len(cluster.journal) == 1
    assert cluster.redone == []


def test_a_killed_worker_costs_one_generation_and_at_most_one_completed_step() -> None:
    cluster = FakeCluster()
    cluster.run(12)
    survivors = {w.name for w in cluster.members() if w.rank != 2}
    cluster.kill(next(w for w in cluster.members() if w.rank == 2))
    cluster.run(100)
    assert cluster.finished == Finish("finished", "")
    assert len(cluster.journal) == 2
    assert len(cluster.redone) <= 1
    assert survivors <= {w.name for w in cluster.members()}


def test_a_lost_node_is_replaced_by_the_spare_from_the_durable_step() -> None:
    cluster = FakeCluster()
    cluster.run(15)
    cluster.lose_node(1)
    cluster.run(200)
    assert cluster.finished == Finish("finished", "")
    assert set(cluster.driver.rank_nodes.values()) == {0, 2}
    assert max(cluster.redone) <= cluster.furthest


def test_a_lost_node_without_a_spare_ends_the_run_with_a_reason() -> None:
    cluster = FakeCluster()
    cluster.run(10)
    cluster.lose_node(2)
    cluster.run(20)
    cluster.lose_node(1)
    cluster.run(100)
    assert cluster.finished is not None
    assert cluster.finished.outcome == "failed"
    assert "no spare" in cluster.finished.detail


def test_a_restarted_driver_takes_a_healthy_run_as_it_finds_it() -> None:
    cluster = FakeCluster()
    cluster.run(12)
    cluster.driver = cluster.new_driver()
    cluster.run(100)
    assert cluster.finished == Finish("finished", "")
    assert len(cluster.journal) == 1


def test_the_same_failure_at_the_same_step_stops_the_run_and_names_it() -> None:
    cluster = FakeCluster()
    cluster.driver.limits = dataclasses.replace(LIMITS, max_crashes=3)
    for _ in range(200):
        cluster.tick()
        stuck = [
            w for w in cluster.members() if w.status == "running" and w.rank == 1 and w.step >= 5
        ]
        if stuck and cluster.finished is None:
            cluster.driver.handle(
                Relay(
                    node=0,
                    left=LeftGeneration(
                        worker=stuck[0].name,
                        generation=stuck[0].generation,
                        rank=1,
                        reason="error",
                        detail="ValueError: labels",
                    ),
                ),
                cluster.now,
            )
            for worker in cluster.members():
                worker.step = min(worker.step, 5)
    assert cluster.driver.outcome == "failed"


def test_a_survivors_word_is_told_as_a_symptom_and_a_later_failure_of_another_rank_is_told_too() -> (
    None
):
    cluster = FakeCluster()
    cluster.run(10)
    driver = cluster.driver

    def leave(rank: int, reason: str, detail: str) -> list[Log]:
        left = LeftGeneration(
            worker=driver.members[rank], generation=0, rank=rank, reason=reason, detail=detail
        )
        return [
            a for a in driver.handle(Relay(node=0, left=left), cluster.now) if isinstance(a, Log)
        ]

    (fence,) = leave(0, "peer", "connection reset")
    assert fence.event == "fence" and fence.fields["is_symptom"]
    assert fence.fields["reason"] == "rank 0 lost a peer: connection reset"
    (failed,) = leave(1, "error", "ValueError: labels")
    assert failed.event == "worker_failed" and (failed.fields["rank"], failed.fields["reason"]) == (
        1,
        "ValueError: labels",
    )


def test_a_corrupt_checkpoint_is_passed_over_also_when_a_survivor_spoke_first() -> None:
    cluster = FakeCluster()
    cluster.run(10)
    driver = cluster.driver
    driver.restore = Restore(source="durable", step=6, folder="f")
    for rank, reason, detail in (
        (0, "peer", "connection reset"),
        (1, "error", "BadCheckpointError: rank-1.safetensors"),
    ):
        left = LeftGeneration(
            worker=driver.members[rank],
            generation=0,
            rank=rank,
            reason=reason,
            detail=detail,
            bad_checkpoint=reason == "error",
        )
        driver.handle(Relay(node=0, left=left), cluster.now)
    assert driver.max_durable == 5


def test_damaged_data_after_a_durable_restore_do_not_make_the_checkpoint_bad() -> None:
    cluster = FakeCluster()
    cluster.run(10)
    driver = cluster.driver
    driver.restore = Restore(source="durable", step=6, folder="f")
    left = LeftGeneration(
        worker=driver.members[1],
        generation=0,
        rank=1,
        reason="error",
        detail="CorruptError: train.bin: sequence 7 holds token 70000",
    )
    driver.handle(Relay(node=0, left=left), cluster.now)
    assert driver.max_durable is None


@pytest.mark.parametrize("phase", ["joining", "running", "leaving"])
def test_what_no_restart_mends_ends_the_run_at_once_with_the_ranks_own_words(phase: str) -> None:
    cluster = FakeCluster()
    cluster.run(10)
    driver = cluster.driver
    driver.phase = phase
    driver.restore = Restore(source="durable", step=6, folder="f")
    left = LeftGeneration(
        worker=driver.members[1],
        generation=0,
        rank=1,
        reason="error",
        detail="data/x has changed; bring the old data back",
        is_fatal=True,
    )
    actions = driver.handle(Relay(node=0, left=left), cluster.now)
    detail = "rank 1: data/x has changed; bring the old data back"
    assert actions == [Finish("failed", detail)]
    assert driver.max_durable is None


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), loss=st.sampled_from([0.0, 0.1, 0.3]))
def test_any_order_of_faults_ends_with_a_finished_run(seed: int, loss: float) -> None:
    cluster = FakeCluster(loss=loss, seed=seed)
    chaos = random.Random(seed + 1)
    lost = False
    for _ in range(8):
        cluster.run(chaos.randrange(1, 15))
        fault = chaos.choice(["worker", "freeze", "executor", "driver", "two", "node"])
        members = cluster.members()
        if fault in ("worker", "two"):
            for worker in chaos.sample(members, min(len(members), 1 + (fault == "two"))):
                cluster.kill(worker)
        elif fault == "freeze" and members:
            chaos.choice(members).frozen = True
        elif fault == "executor":
            cluster.nodes[chaos.randrange(3)].executor = False
        elif fault == "driver":
            cluster.driver = cluster.new_driver()
        elif not lost and all(node.executor for node in cluster.nodes.values()):
            lost = True
            cluster.lose_node(chaos.choice([0, 1]))
    cluster.loss = 0.0
    cluster.run(1500)
    assert cluster.finished == Finish("finished", ""), (
        cluster.driver.phase,
        cluster.driver.generation,
    )
    generations = [begun.generation for begun in cluster.journal]
    assert generations == sorted(set(generations))


def test_a_fault_of_the_users_before_the_first_generation_ends_the_run_with_its_reason() -> None:
    cluster = FakeCluster()
    assert cluster.driver.handle(Hopeless("user_error: install numpy"), 0.1) == [
        Finish("failed", "user_error: install numpy")
    ]
    running = FakeCluster()
    running.run(10)
    assert not [
        a for a in running.driver.handle(Hopeless("late"), running.now) if isinstance(a, Finish)
    ]


def test_the_restore_point_is_the_newest_step_that_every_rank_holds() -> None:
    assert choose_restore(range(2), {0: (4, 5), 1: (5, 6)}, None) == Restore(source="arena", step=5)
    assert choose_restore(range(2), {0: (4, 5)}, (3, "f")) == Restore(
        source="durable", step=3, folder="f"
    )
    assert choose_restore(range(2), {0: (4,), 1: (3,)}, None) == Restore(source="init", step=0)
    assert choose_restore(range(1), {0: (4,)}, (9, "f")) == Restore(
        source="durable", step=9, folder="f"
    )


def test_words_of_an_older_generation_change_nothing() -> None:
    cluster = FakeCluster()
    cluster.run(10)
    cluster.kill(cluster.members()[1])
    cluster.run(20)
    driver = cluster.driver
    assert (driver.phase, driver.generation) == ("running", 1)
    rank, worker = next(iter(driver.members.items()))
    view = driver.worker(worker)
    assert view is not None
    late = [
        Relay(
            node=0, left=LeftGeneration(worker=worker, generation=0, rank=rank, reason="aborted")
        ),
        Suspicion(node=0, pid=view.pid, generation=0, kind="silence"),
        Relay(node=0, store=StoreOpened(generation=0, host="old", port=1)),
    ]
    for event in late:
        assert [a for a in driver.handle(event, cluster.now) if isinstance(a, Log)] == []
    assert (driver.phase, driver.generation) == ("running", 1)
    assert driver.store is None or driver.store[0] != "old"


def test_seals_read_for_an_older_generation_do_not_count() -> None:
    cluster = FakeCluster()
    cluster.run(10)
    driver = cluster.driver
    driver.phase = "reading"
    driver.sealed.clear()
    driver.handle(Seals(node=0, generation=driver.generation - 1, sealed={0: (99,)}), cluster.now)
    assert driver.sealed == {}


def _chosen(cluster: FakeCluster) -> RunState:
    """A driver that waits for the answer to ``FindDurable`` after a kill."""
    cluster.run(10)
    driver = cluster.driver
    driver.sealed = {
        home: {r: (7,) for r, n in driver.rank_nodes.items() if n == home} for home in (0, 1)
    }
    driver.phase = "choosing"
    return driver


def test_without_a_readable_checkpoint_a_run_goes_on_from_its_arenas() -> None:
    cluster = FakeCluster()
    driver = _chosen(cluster)
    actions = driver.handle(DurableFound(None, trouble="MANIFEST.json is damaged"), cluster.now)
    assert any(isinstance(action, BeginGeneration) for action in actions)
    assert driver.restore == Restore(source="arena", step=7)


def test_without_any_readable_state_a_run_fails_and_never_starts_over() -> None:
    cluster = FakeCluster()
    driver = _chosen(cluster)
    driver.sealed = {0: {}, 1: {}}
    (finish,) = [a for a in driver.handle(DurableFound(None, trouble="it is damaged"), cluster.now)
                 if isinstance(a, Finish)]  # fmt: skip
    assert finish.outcome == "failed" and "it is damaged" in finish.detail


def test_a_generation_that_the_journal_cannot_take_is_begun_again_under_another_number() -> None:
    cluster = FakeCluster()
    driver = _chosen(cluster)
    driver.handle(DurableFound(None), cluster.now)
    refused = driver.generation
    assert not [a for a in driver.handle(NotBegun(refused), cluster.now) if isinstance(a, Tell)]
    assert driver.phase == "gathering"
    cluster.run(100)
    assert cluster.journal[-1].generation > refused
    assert cluster.finished == Finish("finished", "")


def test_a_checkpoint_that_proved_corrupt_bars_newer_ones_only_until_the_run_goes_on() -> None:
    cluster = FakeCluster()
    cluster.run(10)
    cluster.driver.max_durable = 4
    cluster.kill(cluster.members()[1])
    cluster.run(20)
    assert cluster.driver.phase == "running" and cluster.driver.max_durable is None


def test_a_run_that_waits_restored_is_not_fenced_and_hears_commands() -> None:
    """As one that was paused when a worker died, or whose first evaluation takes long."""
    cluster = FakeCluster()
    driver = _chosen(cluster)
    driver.handle(DurableFound(None), cluster.now)
    for node in driver.nodes.values():
        for name, view in node.workers.items():
            if view.rank >= 0:
                node.workers[name] = msgspec.structs.replace(
                    view, status="restored", generation=driver.generation
                )
    driver.commands.append(Steer(sequence=1, operation="resume"))
    actions = [
        a
        for after in (1.0, 50.0)
        for a in driver._join(driver.since + after + LIMITS.join_timeout_s)
    ]
    assert not [a for a in actions if isinstance(a, Log)]
    assert [
        a for a in actions if isinstance(a, Tell) and getattr(a.message, "steer", None) is not None
    ]


def test_endless_recoveries_at_one_step_end_the_run_with_the_last_reason() -> None:
    cluster = FakeCluster()
    cluster.run(10)
    driver = cluster.driver
    finished: list[Action] = []
    for number in range(4 * LIMITS.max_crashes):
        driver._fence(f"a peer's socket broke at port {number}", cluster.now)
        finished += [
            a for a in driver._begin(DurableFound(None), cluster.now) if isinstance(a, Finish)
        ]
    (finish,) = finished
    assert finish.outcome == "failed" and "a peer's socket broke" in finish.detail


def test_commands_reach_a_worker_in_order_until_it_holds_them_all() -> None:
    cluster = FakeCluster(loss=0.5, seed=3)
    cluster.driver.commands += [
        Steer(sequence=1, operation="pause"),
        Steer(sequence=2, operation="resume"),
    ]
    cluster.loss = 0.3
    cluster.run(300)
    assert {w.command for w in cluster.members() if w.status != "idle"} <= {0, 1, 2}
    assert cluster.finished is not None
