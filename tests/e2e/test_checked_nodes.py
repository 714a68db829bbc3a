"""A spare whose check fails is refused by name; one that passes takes over."""

from __future__ import annotations

from typing import Any

import pytest
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.local import LocalEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CHECKED = ("launch.spares=1", "health.check_nodes=always", "health.check_deadline_s=120")


def _launch(machine: Any, name: str, *settings: str) -> Any:
    shape = (*machine.two_nodes, "launch.standbys=1")
    return machine.launch(name, shape, CHECKED, settings)


def _checked(machine: Any, name: str) -> dict[str, Any]:
    machine.wait_until(lambda: machine.events(name, "node_checked"), "the check's end", 300.0)
    return machine.events(name, "node_checked")[0]


def test_a_spare_without_room_in_shared_memory_is_refused_and_everybody_is_told(
    machine: Any,
) -> None:
    name = "refused-spare"
    _launch(machine, name, f"health.check_min_shm_mib={1 << 40}")
    machine.stepping(name, 3)
    found = _checked(machine, name)
    assert (found["node"], found["result"], found["failed"]) == (2, "failed", ["shm"])
    machine.wait_until(lambda: machine.status(name)["nodes"]["2"] == "lost", "node 2 is given up")
    shown = machine.headway("status", name, "--runs-dir", machine.runs)
    assert "node 2: its check failed: shm: /dev/shm has" in shown
    start = ("node", "start", "--run", name, "--node", "2", "--runs-dir", machine.runs)
    told = machine.headway(*start, code=1, limit_s=300.0)
    assert "node 2 reports to the driver, but is not used: its check failed: shm:" in told
    machine.headway("stop", name, "--runs-dir", machine.runs)
    machine.assert_clean(name)


def test_a_spare_that_passes_takes_over(machine: Any) -> None:
    name = "good-spare"
    run = _launch(machine, name)
    machine.stepping(name, 3)
    found = _checked(machine, name)
    assert (found["node"], found["result"]) == (2, "passed"), found
    LocalEngine(ClusterFolder(run.cluster_folder)).lose_node(1)
    after = machine.stepping(name, 3, generation=1)
    assert {row["rank"]: row["node"] for row in after["ranks"]} == {0: 0, 1: 2}
    machine.headway("stop", name, "--runs-dir", machine.runs)
    machine.assert_clean(name)
