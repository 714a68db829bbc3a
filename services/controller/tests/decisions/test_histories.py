"""Seeded histories over every disturbance,
and decisions that can be made again from the same events."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from headway.common.decide import Failed
from headway.controller.decisions.events import Remember
from headway.controller.decisions.phases.transitions import TRANSITIONS
from headway.controller.decisions.state import PHASES, RunState
from headway.testkit.simulation.cluster import Cluster
from headway.testkit.simulation.histories import DISTURBANCES, history, outcomes

NO_SPARE = "is lost and no spare is ready"
HISTORIES = int(os.environ.get("HEADWAY_HISTORIES", "300"))


def test_any_history_ends_with_a_finished_run_or_a_refusal_with_a_reason() -> None:
    ends = outcomes(range(HISTORIES))
    assert sum(ends.values()) == HISTORIES
    assert ends["finished"] > 0.9 * HISTORIES, ends


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_thousand_histories_end_so() -> None:
    assert outcomes(range(300, 5300))["finished"] > 4500


@pytest.mark.parametrize("kind", sorted(DISTURBANCES))
def test_every_disturbance_alone_is_survived(kind: str) -> None:
    for seed in range(3):
        cluster = history(seed, kinds=[kind])
        end = cluster.finished
        assert end is not None
        refusals = {"verdict": "seen in the log", "machine": NO_SPARE}
        is_refusal = refusals.get(kind, "cannot be read") in end.detail
        assert end.outcome == "finished" or is_refusal, end


def test_histories_pass_through_every_phase_and_most_events() -> None:
    """Otherwise they would prove little."""
    phases, logged, followed = set(), set(), set()
    chosen = {0: ["flip", "kill"], 1: ["partition"], 2: ["driver"], 3: ["drain"]}
    chosen |= {6: ["disk", "kill"], 7: ["driver", "check"]}
    for seed in range(30):
        driver = history(seed, kinds=chosen.get(seed)).driver
        followed |= driver.state.followed
        state = RunState(driver.start, driver.limits, driver.began_at)
        for event, now in driver.history:
            logged |= {getattr(action, "event", "") for action in state.handle(event, now)}
            phases.add(state.phase)
    assert phases == set(PHASES)
    usual = {pair for pair in TRANSITIONS if pair[1] not in ("over", "gathering")}
    assert followed >= {*usual, ("leaving", "gathering"), ("running", "over")}
    assert logged >= {
        "generation",
        "stepping",
        "fence",
        "worker_lost",
        "node_silent",
        "node_lost",
        "node_replaced",
        "node_returned",
        "waiting",
        "snapshot_damaged",
        "started_over",
        "action_failed",
        "evicted",
        "draining",
        "adopted",
        "node_checked",
    }


def test_in_histories_inits_restart_executors_and_executors_elect_drivers() -> None:
    clusters = [history(seed, kinds=["executor", "driver"]) for seed in range(5)]
    nodes = [node for cluster in clusters for node in cluster.nodes.values()]
    assert max(node.incarnation for node in nodes) > 1
    assert max(cluster.lease.view.claimed for cluster in clusters) > 1
    assert len({cluster.driver.host for cluster in clusters}) > 1


def test_in_histories_a_driver_works_on_beside_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most, tick = [0], Cluster.tick

    def watched(cluster: Cluster) -> None:
        tick(cluster)
        most.append(len(cluster.drivers))

    monkeypatch.setattr(Cluster, "tick", watched)
    for seed in range(20):
        history(seed, kinds=["driver"])
    assert max(most) > 1


def test_a_transition_that_the_table_lacks_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks can fail."""
    monkeypatch.delitem(TRANSITIONS, ("leaving", "gathering"))
    with pytest.raises(AssertionError, match="no run goes from leaving to gathering"):
        history(0, kinds=["kill"])


def test_a_driver_that_waits_without_a_word_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks can fail."""
    monkeypatch.setattr(RunState, "_overdue", lambda _: [])
    cluster = Cluster()
    cluster.disk.failing["BeginGeneration"] = "silent"
    with pytest.raises(AssertionError, match="beginning gave no sign for"):
        cluster.run(200)


DECISIONS = """
import hashlib, sys
from headway.testkit.simulation.histories import history
digest = hashlib.sha256()
for seed in (3, 11, 27, 126):
    cluster = history(seed)
    digest.update(repr(cluster.driver.logs).encode() + repr(cluster.journal).encode())
    digest.update(repr(cluster.driver.history).encode())
print(digest.hexdigest())
"""


def test_equal_inputs_give_equal_decisions_in_another_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DECISIONS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_the_events_of_a_driver_give_its_decisions_again() -> None:
    for seed in range(20):
        driver = history(seed).driver
        state = RunState(driver.start, driver.limits, driver.began_at)
        actions = [state.handle(event, now) for event, now in driver.history]
        assert actions == driver.decisions


def test_nothing_is_repeated_for_what_only_failed_to_be_remembered() -> None:
    cluster = Cluster()
    cluster.run(10)
    assert cluster.driver.handle(Failed(Remember(cluster.state.memory), "x"), cluster.now) == []
