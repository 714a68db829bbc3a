"""Checks of machines in a simulated cluster, whose executors carry them out."""

from __future__ import annotations

from headway.controller.decisions.admission.check_table import AGAIN_S
from headway.testkit.simulation.cluster import TICK_S, Cluster
from headway.testkit.simulation.node import CHECK_S

STEPS = 3000
START_TICKS = 300
"""Until the run trains and its spares were checked."""


def ticks(seconds: float) -> int:
    return round(seconds / TICK_S)


def results(cluster: Cluster) -> list[tuple[int, str]]:
    logs = [log.fields for log in cluster.driver.logs if log.event == "node_checked"]
    return [(log["node"], log["result"]) for log in logs]


def test_a_spare_that_was_repaired_is_used_after_the_next_check() -> None:
    cluster = Cluster(steps=STEPS)
    cluster.nodes[2].check_fails = True
    cluster.run(START_TICKS)
    assert results(cluster) == [(2, "failed")] and cluster.state.status_of(2) == "lost"
    cluster.nodes[2].check_fails = False
    cluster.run(ticks(AGAIN_S[0] + CHECK_S))
    assert results(cluster) == [(2, "failed"), (2, "passed")]
    assert cluster.state.spare_for(0) == 2


def test_a_fault_that_all_spares_share_keeps_none_from_taking_over() -> None:
    cluster = Cluster(steps=STEPS, nodes=4)
    for node in cluster.nodes.values():
        node.check_fails = True
    cluster.run(START_TICKS)
    assert sorted(results(cluster)) == [(2, "failed"), (3, "doubted")]
    assert cluster.state.unused() == {}
    cluster.lose_node(1)
    cluster.run(START_TICKS)
    assert cluster.state.phase == "running"
    assert cluster.state.is_active(2) or cluster.state.is_active(3)


def test_an_executor_ends_its_check_when_its_node_is_given_ranks() -> None:
    cluster = Cluster(steps=STEPS)
    spare = cluster.nodes[2]
    while spare.checked[0] < 0:
        cluster.tick()
    cluster.lose_node(1)
    while not cluster.state.is_active(2):
        spare.checked = (spare.checked[0], cluster.now)  # it takes long
        cluster.tick()
    cluster.run(ticks(2.0))
    assert spare.has_given_way
    cluster.run(START_TICKS)
    assert results(cluster) == [] and cluster.state.phase == "running"
