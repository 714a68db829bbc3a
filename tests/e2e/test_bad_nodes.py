"""A node whose ranks keep dying gives way to a spare; one that is lost without any is waited for,
then the run ends by name."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from headway.common.node.process import ProcessId
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.local import LocalEngine

NAME = "bad-nodes"
FAILURES = 2
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _launch(machine: Any, *settings: str) -> Any:
    shape = (*machine.two_nodes, "launch.standbys=1", "ckpt.durable_every=5")
    return machine.launch(NAME, shape, settings)


def _nodes(status: dict[str, Any]) -> dict[int, int]:
    return {row["rank"]: row["node"] for row in status["ranks"]}


def test_a_node_whose_rank_dies_again_and_again_gives_it_to_the_spare(machine: Any) -> None:
    _launch(machine, "launch.spares=1", f"recovery.max_node_failures={FAILURES}")
    for death in range(FAILURES):
        status = machine.stepping(NAME, 3, generation=death)
        assert _nodes(status) == {0: 0, 1: 1}
        victim = ProcessId.of(status["ranks"][1]["pid"])
        assert victim is not None and victim.kill(signal.SIGKILL)
    after = machine.stepping(NAME, 3, generation=FAILURES)
    assert _nodes(after) == {0: 0, 1: 2}
    (flaky,) = machine.events(NAME, "node_flaky")
    assert (flaky["node"], flaky["failures"]) == (1, FAILURES)
    machine.headway("stop", NAME, "--runs-dir", machine.runs)
    machine.assert_clean(NAME)


def test_a_lost_node_without_a_spare_is_waited_for_and_then_the_end_names_it(machine: Any) -> None:
    run = _launch(machine, "launch.spares=0", "recovery.wait_for_node_s=12")
    machine.stepping(NAME, 3)
    LocalEngine(ClusterFolder(run.cluster_folder)).lose_node(1)
    why = "node 1 is lost and no spare is ready"
    machine.wait_until(lambda: why in machine.status(NAME).get("waiting", ""), "the reason")
    assert run.wait(60.0) == "failed"
    detail = run.fact("detail")
    assert detail.startswith(f"{why}; the newest checkpoint is of step")
    assert "`headway run` again" in detail
    machine.assert_clean(NAME)
