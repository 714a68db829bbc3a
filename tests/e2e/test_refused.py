"""Other data end a run by name and its own let it go on; a damaged checkpoint is passed over."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store.client import newest
from headway.console.run import Run
from headway.testkit.data_daemon import write_tokens
from headway.testkit.journal import query

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"


def _command(machine: Any, *overrides: str) -> list[Any]:
    settings = machine.settings(machine.two_ranks, overrides)
    return ["run", TINY, "--runs-dir", machine.runs, *settings]


def _wait_for_step(machine: Any, step: int) -> Run:
    path = machine.runs / "tiny"

    def is_there() -> bool:
        rows = query(Run(path), "SELECT MAX(step) FROM metrics")
        return bool(rows) and rows[0][0] is not None and int(rows[0][0]) >= step

    machine.wait_until(lambda: (path / "run.json").exists() and is_there(), f"step {step}")
    return Run(path)


@pytest.mark.timeout(300)
def test_other_data_end_a_run_at_its_next_generation_or_start_and_a_damaged_checkpoint_does_not(
    machine: Any,
) -> None:
    data, kept = machine.folder / "data", machine.folder / "kept"
    for copy in (data, kept):
        shutil.copytree(machine.corpus, copy)
    # no checkpoint can be tried instead of another: the failure must not lead back through them
    overrides = (f"data.path={data}", "train.steps=1000000", "ckpt.durable_every=5")
    foreground = machine.start(*_command(machine, *overrides))
    run = _wait_for_step(machine, 12)
    for file in data.glob("train.*"):
        file.unlink()
    write_tokens(data / "train", [500] * 60, vocab_size=512)
    machine.in_process("inject", "tiny", "kill", "--rank", "1", "--runs-dir", machine.runs)
    assert foreground.wait(120) == 1, machine.output.read_text()
    assert run.outcome == "failed"
    detail = run.fact("detail")
    assert f"the train data of {data} have changed" in detail, detail
    assert "restore the old data" in detail
    generations = query(run, "SELECT COUNT(*) FROM events WHERE name = 'generation'")
    assert int(generations[0][0]) == 2, "it was not tried again"
    machine.assert_clean("tiny")

    text = machine.headway(*_command(machine, *overrides), code=1)
    assert "have changed" in text
    generations = query(run, "SELECT COUNT(*) FROM events WHERE name = 'generation'")
    assert int(generations[0][0]) == 3
    shutil.rmtree(data)
    shutil.copytree(kept, data)
    last = max(int(row[0]) for row in query(run, "SELECT step FROM metrics"))
    resumed = machine.start(*_command(machine, *overrides))
    _wait_for_step(machine, last + 5)
    os.kill(resumed.pid, signal.SIGINT)
    assert resumed.wait(60) == 0, machine.output.read_text()
    assert run.outcome == "stopped"
    _damage_the_newest_checkpoint(machine, run, f"data.path={data}")


def _damage_the_newest_checkpoint(machine: Any, run: Run, path: str) -> None:
    """Of the stopped run, which then resumes at the one before and finishes."""
    damaged = newest(run.folder.checkpoints)
    assert damaged is not None
    older = newest(run.folder.checkpoints, max_step=damaged.step - 1)
    assert older is not None
    with (damaged.path / "rank-1.safetensors").open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\x5a" * 50)
    steps = (f"train.steps={damaged.step + 3}", "ckpt.durable_every=5")
    text = machine.headway(*_command(machine, path, *steps))
    assert f"from the checkpoint of step {older.step}" in text
    assert f"finished after step {damaged.step + 3}" in text
    machine.assert_clean("tiny")
