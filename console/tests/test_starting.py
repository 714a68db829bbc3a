"""A run is there from the first second of its start, and a start that fails leaves none."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError, InputError
from headway.common.node.testing import child_environment
from headway.console.cluster import Cluster
from headway.console.folder.claim import claimed, keep_config
from headway.console.folder.starting import STARTING, Starter, enter_stage
from headway.console.lifecycle import launch
from headway.console.live.follow import Follower
from headway.console.run import Run
from headway.console.testing import SMALL, FakeRun

Shell = Callable[..., tuple[int, str, str]]

KILLED = """
import os, signal, sys
from pathlib import Path
from headway.console.folder.claim import claimed, keep_config
from headway.console.folder.starting import enter_stage
from headway.console.testing import SMALL
with claimed(Path(sys.argv[1]), print) as (run, _):
    keep_config(run, SMALL)
    enter_stage(run.path, "preparing corpus stdlib")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _kill_a_start(path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(path)]
    done = subprocess.run(words, env=child_environment(), check=False, timeout=60)
    assert done.returncode == -9


def test_each_stage_of_a_start_can_be_watched_and_a_refusal_leaves_no_run(
    own_roots: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_roots)
    seen: list[str] = []

    def look(*_: object) -> None:
        code, out, _err = shell("status")
        assert code == 0, out
        line = out.splitlines()[0]
        seen.append(line.rpartition(" (")[0])
        assert line.endswith(" s)"), line
        rows = {row["name"]: row for row in json.loads(shell("runs", "--json")[1])}
        assert (rows["new"]["state"], rows["new"]["resume"]) == ("starting", "")

    def fail(*_: object) -> None:
        look()
        raise HeadwayError("node 0 did not start")

    monkeypatch.setattr(launch.preflight, "prepare_corpus", look)
    monkeypatch.setattr(launch, "measure_peak", look)
    monkeypatch.setattr(launch, "start", fail)
    with pytest.raises(HeadwayError, match="node 0 did not start"):
        Cluster("runs").launch(SMALL, name="new", measure=True)
    stages = ("preparing corpus stdlib", "measuring this machine's peak", "starting nodes")
    steps = SMALL.train.steps
    assert seen == [f"run new: step 0/{steps}  starting: {stage}" for stage in stages]
    assert not (own_roots / "runs" / "new").exists()


@pytest.mark.parametrize("error", [InputError("source holds no text"), KeyboardInterrupt()])
def test_a_bad_corpus_and_ctrl_c_leave_no_folder(
    own_roots: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def refuse(*_: object) -> None:
        assert Run(own_roots / "runs" / "new").state == "starting"
        raise error

    monkeypatch.setattr(launch.preflight, "prepare_corpus", refuse)
    with pytest.raises(type(error)):
        Cluster(own_roots / "runs").launch(SMALL, name="new")
    assert list((own_roots / "runs").iterdir()) == []


def test_a_killed_start_does_not_look_alive_and_the_next_one_is_as_new(
    own_roots: Path, shell: Shell
) -> None:
    path = own_roots / "runs" / "new"
    _kill_a_start(path)
    run = Run(path)
    assert run.state == "interrupted while starting" and run.starter is None and not run.live
    code, out, _ = shell("status", "new")
    assert code == 0 and "interrupted while starting" in out
    wider = dataclasses.replace(SMALL, train=dataclasses.replace(SMALL.train, seed=77))
    with pytest.raises(KeyboardInterrupt), claimed(path, print) as (records, resumed):
        assert not resumed and keep_config(records, wider) == []
        assert records.state == "starting"
        raise KeyboardInterrupt
    assert not path.exists()


def test_a_run_that_has_begun_stays_after_a_killed_start(fake: FakeRun) -> None:
    fake.advance(2)
    fake.close()
    path = fake.folder.path
    dead = dataclasses.replace(Starter.here(is_new=True), start_ticks=1)
    # of the command that started it
    (path / STARTING).write_text(json.dumps(dataclasses.asdict(dead)))
    assert fake.run.state == "interrupted"
    with pytest.raises(HeadwayError, match="no"), claimed(path, print) as (_, resumed):
        assert resumed
        raise HeadwayError("no")
    assert fake.run.completed_steps == 2 and not (path / STARTING).exists()


def test_watching_a_start_ends_when_its_folder_is_removed(own_roots: Path) -> None:
    path = own_roots / "runs" / "new"
    out = _Removing()
    with pytest.raises(InputError, match="bad"), claimed(path, print) as (records, _):
        keep_config(records, SMALL)
        enter_stage(path, "preparing corpus stdlib")
        out.path = path
        with pytest.raises(HeadwayError, match="its start failed or was cancelled"):
            Follower(Run(path), out=out, every_s=0.1).follow()
        raise InputError("bad")
    assert "starting: preparing corpus stdlib (0 s)" in out.getvalue()


class _Removing(io.StringIO):
    """Removes the run's folder once something has been printed."""

    path: Path | None = None

    def write(self, text: str) -> int:
        if self.path is not None and (self.path / "run.json").exists():
            (self.path / "run.json").unlink()
            (self.path / "config.toml").unlink()
        return super().write(text)


def test_a_command_to_a_starting_run_names_what_it_waits_for(own_roots: Path) -> None:
    path = own_roots / "runs" / "new"
    with claimed(path, print) as (records, _):
        keep_config(records, SMALL)
        enter_stage(path, "starting nodes")
        with pytest.raises(InputError, match=r"run new is starting: starting nodes \(\d+ s\)"):
            Run(path).pause()
