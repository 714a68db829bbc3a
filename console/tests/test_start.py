"""Starting nodes and taking them down: what is told, and in which order things happen."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError
from headway.console import start
from headway.console.testing import FakeRun
from headway.trainer.config import LaunchConfig

DOWN = Path(__file__).parents[2] / "infra" / "terraform" / "down.sh"


def test_one_node_is_told_in_the_singular(fake: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.LocalEngine, "start_node", lambda *_: None)
    monkeypatch.setattr(start, "_attach", lambda *_: None)
    monkeypatch.setattr(start, "_wait_for_driver", lambda _: None)
    monkeypatch.setattr(start, "wait_for_node", lambda *_: None)
    told: list[str] = []
    for nodes, spares in ((1, 1), (2, 0)):
        start.start(fake.run, fake.cluster, LaunchConfig(nodes=nodes, spares=spares), told.append)
    assert told == ["1 node and 1 spare are up", "2 nodes and 0 spares are up"]


def test_a_node_that_does_not_start_is_told_with_the_end_of_its_log(fake: FakeRun) -> None:
    """The log itself goes with the folder of a new run."""
    fake.cluster.remove("nodes/0.json")
    with pytest.raises(HeadwayError, match=r"n0-executor\.log is empty"):
        start.wait_for_node(fake.cluster, 0, timeout_s=0.05)
    (fake.cluster.path / "logs" / "n0-executor.log").write_text("one\nno memory left\n")
    with pytest.raises(HeadwayError, match=r"n0-executor\.log ends with: no memory left"):
        start.wait_for_node(fake.cluster, 0, timeout_s=0.05)


def test_make_down_drains_the_cluster_before_it_destroys_anything(tmp_path: Path) -> None:
    for name in ("terraform", "headway"):
        tool = tmp_path / name
        tool.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n')
        tool.chmod(0o755)
    cluster = tmp_path / "cluster"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CLUSTER_DIR": str(cluster)}
    done = subprocess.run([str(DOWN), "local"], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    drained = calls.index(f"headway cluster drain {cluster}")
    destroyed = [number for number, call in enumerate(calls) if " destroy " in call]
    assert destroyed and drained < destroyed[0]
