"""The node of the driver is drained: another one takes over its ranks, and the lead."""

from __future__ import annotations

from typing import Any

import pytest
from headway.console.run import Run

NAME = "drained"


@pytest.mark.timeout(300)
def test_another_node_leads_with_a_monitor_of_its_own(machine: Any) -> None:
    def headway(*words: str) -> str:
        return str(machine.in_process(*words, "--runs-dir", machine.runs))

    def status() -> dict[str, Any]:
        return dict(machine.status(NAME))

    machine.launch(NAME, machine.two_nodes, "launch.spares=1", "ckpt.durable_every=1000000")
    before = machine.stepping(NAME)
    assert "driver" in before["services"]["0"]
    headway("drain", NAME, "0")

    def is_whole() -> bool:
        now = status()
        services = now.get("services", {})
        leading = [node for node, found in services.items() if {"driver", "monitor"} <= set(found)]
        return now.get("phase") == "running" and leading in (["1"], ["2"])

    machine.wait_until(is_whole, "another driver, with a monitor")
    now = status()
    assert now["epoch"] > before["epoch"] and now["nodes"]["0"] == "lost"
    assert {row["node"] for row in now["ranks"]} == {1, 2}
    machine.wait_until(lambda: status().get("step", 0) > now["step"], "another step")
    headway("stop", NAME)
    assert Run(machine.runs / NAME).outcome == "stopped"
    machine.assert_clean(NAME)
