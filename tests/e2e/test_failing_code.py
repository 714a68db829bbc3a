"""An exception of the training code: once it is recovered from, again and again it ends the run,
with the culprit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headway.common.node.arming import arm
from headway.console.live.summary import recovery_rows
from headway.console.run import Run
from headway.testkit.journal import query

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"
MAX_CRASHES = 3


@pytest.mark.timeout(240)
def test_a_rank_that_raises_goes_on_and_one_that_raises_at_every_try_ends_the_run_by_name(
    machine: Any,
) -> None:
    limits = ("train.steps=1000000", f"recovery.max_crashes={MAX_CRASHES}")
    foreground = machine.start(
        "run", TINY, "--runs-dir", machine.runs, *machine.settings(machine.two_ranks, limits),
    )  # fmt: skip
    machine.wait_until(
        lambda: (machine.runs / "tiny" / "run.json").exists(), "the run has a folder"
    )
    run = Run(machine.runs / "tiny")

    def steps() -> int:
        return max((int(row[0]) for row in query(run, "SELECT step FROM metrics")), default=-1)

    machine.wait_until(lambda: steps() > 2, "it trains")
    before = machine.wait_until(lambda: machine.status("tiny"), "the driver answers")
    points = machine.shm_root / run.folder.run_id / "failpoints.bin"
    arm(points, "worker.in_forward", "raise", {"rank": 1})
    machine.wait_until(
        lambda: any(row["total_s"] for row in recovery_rows(run)), "the run has recovered"
    )
    (recovery,) = recovery_rows(run)
    assert recovery["reason"].startswith("rank 1 failed: FailpointError"), recovery
    assert recovery["repeated"] <= 1
    after = machine.wait_until(lambda: machine.status("tiny"), "the driver answers")
    assert after["generation"] == 1
    assert [row["pid"] for row in after["ranks"]] == [row["pid"] for row in before["ranks"]], (
        "nobody had to be replaced"
    )
    log = machine.in_process(
        "logs", "tiny", "--runs-dir", machine.runs, "--rank", "1", "--tail", "2000"
    )
    assert "Traceback" in log and "in _forward" in log

    step = steps() + 60
    for attempt in range(MAX_CRASHES):
        arm(points, "worker.in_forward", "raise", {"rank": 1, "step": step}, key=f"again-{attempt}")
    assert foreground.wait(120) == 1, machine.output.read_text()
    assert run.outcome == "failed"
    assert run.fact("detail").startswith(
        "rank 1 failed: FailpointError: failpoint worker.in_forward fired"
    )
    assert run.fact("detail").endswith(f"({MAX_CRASHES} times at step {step})")
    assert run.fact("detail") in machine.output.read_text()
    machine.assert_clean("tiny")
