"""``headway run`` as a user meets it: it trains, is interrupted, killed, started again,
and leaves nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store.client import newest
from headway.console.analysis.events import completed_steps, load_events
from headway.console.run import Run
from headway.testkit.journal import query

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.toml"))
TINY = ROOT / "examples" / "tiny.toml"
OFTEN = ("tiny", "tp2", "llama")
"""The other ones differ by the model alone, whose layers tests/golden compares."""
STEPS = 90
LONG = (f"train.steps={STEPS}", "ckpt.durable_every=10")


def _run(machine: Any, *overrides: Any, name: str = "") -> list[str]:
    words = [
        "run",
        str(TINY),
        "--runs-dir",
        str(machine.runs),
        *machine.settings(machine.two_ranks, *overrides),
    ]
    return [*words, "--name", name] if name else words


def _steps_logged(run: Run) -> list[int]:
    return [int(row[0]) for row in query(run, "SELECT step FROM metrics ORDER BY step")]


def _wait_for_step(machine: Any, name: str, step: int) -> None:
    path = machine.runs / name
    machine.wait_until(
        lambda: (path / "run.json").exists() and max(_steps_logged(Run(path)), default=-1) >= step,
        f"{name} reaches step {step}",
    )


@pytest.fixture(scope="module")
def uninterrupted(make_machine: Any) -> Any:
    """A machine on which the run ``tiny`` has made all its steps without any disturbance."""
    machine = make_machine()
    foreground = machine.start(*_run(machine, LONG, "train.sample_tokens=8"))
    _wait_for_step(machine, "tiny", 0)
    machine.listened = machine.listening()
    assert foreground.wait(120) == 0, machine.output.read_text()
    return machine


@pytest.mark.timeout(300)
def test_a_run_ends_with_a_summary_and_leaves_nothing_behind(uninterrupted: Any) -> None:
    machine = uninterrupted
    assert machine.listened, "executors and driver listen while the run lives"
    machine.assert_clean("tiny", listened=machine.listened)
    folder = machine.runs / "tiny"
    for path in (folder, *folder.rglob("*")):
        assert not path.stat().st_mode & 0o077, f"{path} is open to other users"
    text = machine.output.read_text()
    assert f"run tiny: finished after step {STEPS}/{STEPS}" in text
    for word in (
        "validation loss",
        "training unigrams give",
        "tokens/s",
        "MFU",
        f"checkpoint       step {STEPS}",
        "sample:",
        "trace ",
    ):
        assert word in text, text
    done = completed_steps(load_events(machine.runs / "tiny"))
    every_step = [(rank, step) for rank in (0, 1) for step in range(STEPS)]
    assert sorted(done.select("rank", "step").rows()) == every_step
    # The same command again is a new run, and its summary is JSON on request.
    out = machine.headway(*_run(machine, "train.steps=3"), "--json")
    summary = json.loads(out.splitlines()[-1])
    assert summary["name"] == "tiny-2"
    assert summary["outcome"] == "finished"
    assert summary["step"] == summary["steps"] == 3
    assert summary["validation_before"] is not None and summary["validation_after"] is not None
    assert 0 < summary["mfu"] < 1
    assert summary["tokens_per_s"] > 0
    assert [one["step"] for one in summary["checkpoints"]] == [3]
    assert Path(summary["trace"]).exists()
    machine.assert_clean("tiny", "tiny-2")
    machine.headway(*_run(machine, "train.steps=3", name="tiny"), code=2)


@pytest.mark.timeout(300)
def test_after_ctrl_c_and_sigkill_of_everything_the_next_run_goes_on_to_the_same_bits(
    machine: Any, uninterrupted: Any
) -> None:
    foreground = machine.start(*_run(machine, LONG))
    _wait_for_step(machine, "tiny", 12)
    listened = machine.listening()
    os.kill(foreground.pid, signal.SIGINT)
    assert foreground.wait(60) == 0, machine.output.read_text()
    machine.assert_clean("tiny", listened=listened)
    run = Run(machine.runs / "tiny")
    assert run.outcome == "stopped"
    found = newest(run.folder.checkpoints)
    assert found is not None
    stopped_at = found.step
    assert 12 < stopped_at < STEPS
    assert max(_steps_logged(run)) == stopped_at - 1, "the checkpoint holds every completed step"
    assert f"run tiny: stopped after step {stopped_at}/{STEPS}" in machine.output.read_text()

    machine.start(*_run(machine, LONG))
    _wait_for_step(machine, "tiny", stopped_at + 4)
    line = f"resuming from step {stopped_at} (durable)"
    machine.wait_until(lambda: line in machine.output.read_text(), line)
    logged = _steps_logged(run)
    assert logged == list(range(len(logged))), "no step is missing and none was done twice"
    titles = [Path(f"/proc/{one.pid}/cmdline").read_text() for one in machine.processes()]
    for rank in (0, 1):  # what ps shows
        assert any(f"headway tiny: rank {rank} (dp {rank}), node 0" in one for one in titles), (
            titles
        )
    listened = machine.listening()
    # console, executor, driver, monitor, four services, workers
    assert machine.kill_everything() >= 8
    assert "resuming run tiny" in machine.output.read_text()
    assert not (machine.runs / "tiny-2").exists()
    assert not run.outcome
    assert any(machine.shm_root.iterdir()), "killed processes cannot tidy up"
    kept = newest(run.folder.checkpoints)
    assert kept is not None

    text = machine.headway(*_run(machine, LONG))
    assert "resuming run tiny" in text
    found = re.search(r"resuming from step (\d+) \(arena\)", text)
    assert found is not None and int(found[1]) >= kept.step, "the snapshots in memory are newer"
    # what was on its way to the journal when everything died is not measured again
    lost = set(range(STEPS)) - set(_steps_logged(run))
    assert len(lost) <= 8 and all(step < int(found[1]) for step in lost), lost
    assert machine.digest("tiny") == uninterrupted.digest("tiny")
    machine.assert_clean("tiny", listened=listened)


@pytest.mark.timeout(180)
def test_a_run_whose_folder_was_removed_ends_by_itself(machine: Any) -> None:
    machine.headway(*_run(machine, LONG), "--set", "recovery.folder_gone_s=3", "--detach")
    _wait_for_step(machine, "tiny", 3)
    assert machine.processes()
    machine.wait_until(lambda: _is_removed(machine.runs / "tiny"), "the folder is gone", 20.0)
    machine.wait_until(lambda: not machine.processes(), "all processes ended", 60.0)
    machine.assert_clean()


def _is_removed(folder: Path) -> bool:
    """Remove it once more: what the run adds to a folder in the meantime is left over."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@pytest.mark.timeout(180)
def test_ctrl_c_before_the_first_step_leaves_nothing_running(machine: Any) -> None:
    foreground = machine.start(*_run(machine, LONG))
    machine.wait_until(
        lambda: list(machine.runs.glob("tiny/cluster/nodes/0.json")), "the executor is up"
    )
    os.kill(foreground.pid, signal.SIGINT)
    foreground.wait(90)
    text = machine.output.read_text()
    # Caught while starting (130, and a new run's folder goes too) or already followed (stopped, as
    # after any step).
    assert foreground.returncode in (0, 130), text
    assert "Traceback" not in text
    machine.assert_clean(*(["tiny"] if foreground.returncode == 0 else []))
    assert list(machine.runs.iterdir()) == (
        [machine.runs / "tiny"] if foreground.returncode == 0 else []
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", [
    pytest.param(path, id=path.stem, marks=[] if path.stem in OFTEN else [pytest.mark.slow])
    for path in EXAMPLES])  # fmt: skip
def test_every_example_trains(machine: Any, example: Path) -> None:
    small = ("model.layers=4", "train.steps=4", "ckpt.durable_every=2", "launch.spares=0")
    text = machine.headway("run", example, "--runs-dir", machine.runs, *machine.settings(small))
    assert f"run {example.stem}: finished after step 4/4" in text
    machine.assert_clean(example.stem)
