"""Trials in real processes: outcomes, failures, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.config import load, to_dict
from headway.common.errors import HeadwayError
from headway.common.node.testing import wait_until
from headway.dataloader.prepare import prepare
from headway.trainer.client import Trial, TrialRunner
from headway.trainer.config import RunConfig

SMALL = [
    "model.layers=2", "model.hidden=32", "model.heads=2", "model.vocab_size=300",
    "model.seq_len=16", "parallel.pp=2", "launch.ranks_per_node=2", "train.dtype=fp32",
    "train.device=cpu", "train.steps=3", "train.global_batch_size=2", "train.eval_batches=1",
    "train.sample_tokens=0", "data.vocab_size=300",
]  # fmt: skip
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some prepared text."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = folder / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"def number_{number}(): return {number}\n" * 40)
    run = load(RunConfig, [], [*SMALL, f"data.source={texts}", f"data.path={folder / 'data'}"])
    prepare(run.data, say=lambda _: None)
    return folder / "data"


def settings(corpus: Path, *more: str) -> dict[str, object]:
    return to_dict(load(RunConfig, [], [*SMALL, f"data.path={corpus}", *more]))


@pytest.fixture
def runner() -> Iterator[TrialRunner]:
    with TrialRunner() as made:
        yield made


def processes(folder: Path) -> list[int]:
    """Those that were started with the runner's folder, their forks included."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def test_both_ways_of_reading_train_the_same_and_stand_ins_have_no_loss(
    runner: TrialRunner, corpus: Path
) -> None:
    config = settings(corpus)
    ahead, in_turn = (runner.run(Trial(config, reads_ahead=reads)) for reads in (True, False))
    assert ahead.error == "" and in_turn.error == ""
    assert ahead.eval_loss == in_turn.eval_loss and ahead.eval_loss is not None
    assert len(ahead.step_s) == 3 and min(ahead.step_s) > 0
    assert ahead.peak_bytes is not None and ahead.peak_bytes > 0
    played = runner.run(Trial(config, stand_in=True))
    assert played.error == "" and len(played.step_s) == 3
    assert played.eval_loss is None and played.peak_bytes is None


def test_a_failed_trial_says_why_and_the_next_one_runs(runner: TrialRunner, corpus: Path) -> None:
    failed = runner.run(Trial(settings(corpus / "absent"), reads_ahead=False))
    assert "absent" in failed.error and failed.step_s == []
    assert runner.run(Trial(settings(corpus), reads_ahead=False)).error == ""


def test_closing_in_the_middle_of_a_trial_leaves_no_process(corpus: Path) -> None:
    runner = TrialRunner()
    endless = Trial(settings(corpus, "train.steps=1000000"), stand_in=True)

    def run() -> None:
        with pytest.raises(HeadwayError, match="the process that runs trials ended"):
            runner.run(endless)

    thread = threading.Thread(target=run)
    thread.start()
    folder = runner.folder
    wait_until(lambda: len(processes(folder)) >= 3, LIMIT_S)  # the server and two ranks
    runner.close()
    thread.join(LIMIT_S)
    wait_until(lambda: not processes(folder), LIMIT_S)
    assert not folder.exists()


def test_the_processes_end_with_their_owner(corpus: Path, tmp_path: Path) -> None:
    """It is killed, so that it cannot end them itself."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(settings(corpus, "train.steps=1000000")))
    code = (
        "import json, sys; from headway.trainer.client import Trial, TrialRunner\n"
        "runner = TrialRunner(); print(runner.folder, flush=True)\n"
        "runner.run(Trial(json.load(open(sys.argv[1])), stand_in=True))"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(config)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        folder = Path(owner.stdout.readline().strip())
        wait_until(lambda: len(processes(folder)) >= 3, LIMIT_S)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        wait_until(lambda: not processes(folder), LIMIT_S)
    wait_until(lambda: not folder.exists(), LIMIT_S)
