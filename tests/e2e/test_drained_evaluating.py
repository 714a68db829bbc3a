"""A node is drained while its ranks evaluate for longer than the notice lasts: no step is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from headway.ckpt_store.client import newest

NAME = "evaluating"
NOTICE_S = 3
LONG = "train.eval_batches=5000"
"""10 s of evaluation where a batch takes 2 ms."""
RARELY = ("launch.spares=1", "ckpt.durable_every=1000000")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_stores_write_the_newest_step_while_no_rank_can(machine: Any) -> None:
    def status() -> dict[str, Any]:
        return dict(machine.wait_until(lambda: machine.status(NAME), "the driver answers"))

    runs = ("--runs-dir", machine.runs)
    run = machine.launch(NAME, machine.two_nodes, RARELY)
    machine.stepping(NAME, 3)
    machine.headway("stop", NAME, *runs)
    first = newest(machine.runs / NAME / "checkpoints")
    assert first is not None
    machine.launch(NAME, machine.two_nodes, RARELY, LONG)  # it evaluates before its first step only
    machine.wait_until(lambda: status()["nodes"]["2"] == "spare", "the spare")
    machine.stepping(NAME, first.step + 3)
    assert newest(machine.runs / NAME / "checkpoints") == first
    known = len(run.evaluations())
    machine.headway("evaluate", NAME, "--no-wait", *runs)
    machine.wait_until(lambda: _stands(status), "the ranks evaluate")
    step = status()["step"]

    machine.headway("drain", NAME, "1", "--notice", str(NOTICE_S), "--yes", *runs)
    machine.wait_until(lambda: status()["nodes"]["1"] == "lost", "the node has left")
    assert len(run.evaluations()) == known, "the evaluation outlasts the notice"
    machine.wait_until(lambda: len(machine.events(NAME, "generation")) == 3, "a recovery")
    after = machine.events(NAME, "generation")[-1]
    assert after["step"] >= step - 1 > first.step and after["source"] == "durable"
    machine.headway("stop", NAME, "--now", "--yes", *runs)


def _stands(status: Callable[[], dict[str, Any]]) -> bool:
    """No step within a second."""
    step = status()["step"]
    time.sleep(1.0)
    return bool(status()["step"] == step)
