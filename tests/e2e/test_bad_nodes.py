"""A node whose ranks keep dying gives way to a spare; one that is lost without any is waited for,
then the run ends by name."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from headway.common.node.process import ProcessId
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.launch.local import LocalEngine

NAME = "bad-nodes"
SHAPE = (
    "parallel.tp=1",
    "parallel.pp=2",
    "parallel.dp=1",
    "launch.nodes=2",
    "launch.ranks_per_node=1",
    "launch.standbys=1",
    "train.global_batch_size=4",
    "train.steps=1000000",
    "ckpt.durable_every=5",
)
FAILURES = 2
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _launch(machine: Any, *settings: str) -> Run:
    machine.headway(
        "run", "examples/tiny.toml", "--name", NAME, "--detach", "--runs-dir", machine.runs,
        *machine.settings(SHAPE, settings),
    )  # fmt: skip
    return Run(machine.runs / NAME)


def _running(machine: Any, generation: int) -> dict[str, Any]:
    """The status once this generation, or a later one, steps and no node is in trouble."""

    def found() -> dict[str, Any]:
        status = machine.status(NAME)
        is_well = status.get("phase") == "running" and status["step"] > 3
        is_well = is_well and status["generation"] >= generation and not status["troubles"]
        return dict(status) if is_well else {}

    return dict(machine.wait_until(found, f"generation {generation} steps"))


def _nodes(status: dict[str, Any]) -> dict[int, int]:
    return {row["rank"]: row["node"] for row in status["ranks"]}


def test_a_node_whose_rank_dies_again_and_again_gives_it_to_the_spare(machine: Any) -> None:
    _launch(machine, "launch.spares=1", f"recovery.max_node_failures={FAILURES}")
    for death in range(FAILURES):
        status = _running(machine, death)
        assert _nodes(status) == {0: 0, 1: 1}
        victim = ProcessId.of(status["ranks"][1]["pid"])
        assert victim is not None and victim.kill(signal.SIGKILL)
    after = _running(machine, FAILURES)
    assert _nodes(after) == {0: 0, 1: 2}
    (flaky,) = machine.events(NAME, "node_flaky")
    assert (flaky["node"], flaky["failures"]) == (1, FAILURES)
    machine.headway("stop", NAME, "--runs-dir", machine.runs)
    machine.assert_clean(NAME)


def test_a_lost_node_without_a_spare_is_waited_for_and_then_the_end_names_it(machine: Any) -> None:
    run = _launch(machine, "launch.spares=0", "recovery.wait_for_node_s=12")
    _running(machine, 0)
    LocalEngine(ClusterFolder(run.cluster_folder)).lose_node(1)
    why = "node 1 is lost and no spare is ready"
    machine.wait_until(lambda: why in machine.status(NAME).get("waiting", ""), "the reason")
    assert run.wait(60.0) == "failed"
    detail = run.fact("detail")
    assert detail.startswith(f"{why}; the newest checkpoint is of step")
    assert "`headway run` again" in detail
    machine.assert_clean(NAME)
