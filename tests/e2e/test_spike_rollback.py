"""A spike leads a real run back to a checkpoint, from which it passes over the samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store.client import newest, read_shard
from headway.console.run import Run
from headway.testkit.journal import query
from headway.trainer.state.train_state import TrainState

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"
STEPS, SIZE = 16, 4
JUMPY = (
    f"train.steps={STEPS}",
    f"train.global_batch_size={SIZE}",
    "ckpt.durable_every=4",
    "train.on_spike=rollback",
    "train.spike_factor=1.1",
    "train.spike_window=4",
    "optim.lr=1e-3",
    "optim.min_lr=1e-3",
    "optim.warmup_steps=0",
    "recovery.max_spike_rollbacks=50",
)
"""Gradient norms differ that much from batch to batch."""


def _events(run: Run, name: str) -> list[dict[str, Any]]:
    rows = query(run, "SELECT fields FROM events WHERE name = ? ORDER BY rowid", (name,))
    return [json.loads(row[0]) for row in rows]


@pytest.mark.timeout(400)
def test_a_run_goes_back_behind_its_spikes_and_finishes(machine: Any) -> None:
    words = ("run", TINY, "--runs-dir", machine.runs)
    machine.headway(*words, *machine.settings(machine.two_ranks, JUMPY))
    run = Run(machine.runs / "tiny")
    assert run.outcome == "finished"
    back, spikes = _events(run, "spike_rollback"), _events(run, "spike")
    assert back, "the gradient norms of this run jump"
    assert len(back) == len(spikes)
    fences = [one["reason"] for one in _events(run, "fence")]
    assert fences == [one["reason"] for one in spikes], "no rank took another's leaving for a loss"
    assert [one["samples"] for one in back] == sorted({one["samples"] for one in back}), (
        "each spike lies behind the one before it"
    )
    begun = [one["step"] for one in _events(run, "generation")]
    assert begun == [0, *(one["step"] for one in back)]
    newest_first = query(run, "SELECT step FROM metrics ORDER BY step")
    assert {int(row[0]) for row in newest_first} == set(range(STEPS))
    checkpoint = newest(run.folder.checkpoints, 2)
    assert checkpoint is not None and checkpoint.step == STEPS
    _, extra = read_shard(checkpoint, 0)
    passed = back[-1]["samples"] - back[-1]["step"] * SIZE
    assert TrainState.unpack(extra).samples == STEPS * SIZE + passed, "passed over, not read again"
    machine.assert_clean("tiny")
