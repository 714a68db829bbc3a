"""A spike ends a run by name, behind a checkpoint of the state before it; it can be resumed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store.client import newest
from headway.console.live.summary import recovery_rows
from headway.console.run import Run
from headway.testkit.journal import query

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"
STEPS = 12
TOUCHY = (
    f"train.steps={STEPS}",
    "ckpt.durable_every=1000",
    "train.on_spike=stop",
    "train.spike_factor=1.0001",
    "train.spike_window=1",
)
"""Any step whose loss or norm is above that of the step before."""


@pytest.mark.timeout(240)
def test_a_spike_stops_the_run_behind_a_checkpoint_from_which_it_can_be_resumed(
    machine: Any,
) -> None:
    words = ("run", TINY, "--runs-dir", machine.runs)
    said = machine.headway(*words, *machine.settings(machine.two_ranks, TOUCHY), code=1)
    run = Run(machine.runs / "tiny")
    detail = run.fact("detail")
    assert run.outcome == "failed" and detail in said
    found = re.search(r"step (\d+) is a spike: the (gradient norm|loss)", detail)
    assert found is not None, detail
    step = int(found.group(1))
    assert f"checkpoint {step} is the state before it" in detail
    assert recovery_rows(run) == [], "it was not tried again"
    checkpoint = newest(run.folder.checkpoints, 2)
    assert checkpoint is not None and checkpoint.step == step, "whole, of all ranks"
    logged = [int(row[0]) for row in query(run, "SELECT step FROM metrics ORDER BY step")]
    assert logged == list(range(step)), "the spike is not a completed step"

    taken = machine.settings(machine.two_ranks, TOUCHY, "train.on_spike=ignore")
    machine.headway(*words, *taken)
    assert run.outcome == "finished"
    steps = {int(row[0]) for row in query(run, "SELECT step FROM metrics")}
    assert steps == set(range(STEPS))
    machine.assert_clean("tiny")
