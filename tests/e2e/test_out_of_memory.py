"""A rank whose memory runs out ends the run at once, with what would help; it is not restarted."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest
from headway.console.live.summary import recovery_rows
from headway.console.run import Run

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"
LIMIT_BYTES = 1 << 30
"""Private memory of each process: enough for all but the activations below."""
LARGE = ("train.micro_batch_size=4096", "train.global_batch_size=8192")


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))


@pytest.mark.timeout(240)
def test_memory_that_runs_out_ends_the_run_with_what_would_help(machine: Any) -> None:
    words = ("run", TINY, "--runs-dir", machine.runs, *machine.settings(machine.two_ranks, LARGE))
    done = subprocess.run(
        [machine._command, *map(str, words)],
        env=machine.env,
        cwd=TINY.parents[1],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        preexec_fn=_limited,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    run = Run(machine.runs / "tiny")
    assert run.outcome == "failed"
    detail = run.fact("detail")
    assert "ran out of memory" in detail and "activations" in detail, detail
    assert "train.recompute=full (saves" in detail, detail
    assert "train.recompute=full" in said
    assert recovery_rows(run) == [], "it was not tried again"
