"""A part of the newest checkpoint that cannot be read for a moment: the run still starts there."""

from __future__ import annotations

from typing import Any

import pytest
from headway.ckpt_store.client import newest

NAME = "unreadable"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_part_that_is_back_when_it_is_read_again_costs_no_step(machine: Any) -> None:
    words = ["run", "examples/tiny.toml", "--name", NAME, "--detach", "--runs-dir", machine.runs]
    words += machine.settings(machine.two_ranks, "train.steps=1000000", "ckpt.durable_every=5")
    machine.headway(*words)
    machine.wait_until(lambda: machine.status(NAME).get("step", 0) > 12, "two checkpoints")
    machine.headway("stop", NAME, "--runs-dir", machine.runs)
    machine.assert_clean(NAME)
    found = newest(machine.runs / NAME / "checkpoints")
    assert found is not None
    part, hidden = found.path / "rank-1.safetensors", found.path / "hidden"
    part.rename(hidden)

    known = len(machine.events(NAME, "fence"))
    machine.headway(*words)
    machine.wait_until(lambda: len(machine.events(NAME, "fence")) > known, "rank 1 cannot read it")
    hidden.rename(part)
    machine.wait_until(lambda: machine.status(NAME).get("step", 0) > found.step, "further steps")
    (_, *after) = machine.events(NAME, "generation")
    assert [(one["source"], one["step"]) for one in after] == [("durable", found.step)] * 2
    machine.headway("stop", NAME, "--runs-dir", machine.runs)
