"""Starting a run and taking nodes down: what is printed, and in which order things happen."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError
from headway.console.lifecycle import launch
from headway.console.machine.peak import Peak
from headway.console.testing import FakeRun
from headway.trainer.config import LaunchConfig

DOWN = Path(__file__).parents[2] / "infra" / "terraform" / "down.sh"


def test_one_node_is_told_in_the_singular(fake: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "attach", lambda *_: None)
    monkeypatch.setattr(launch, "_wait_for_driver", lambda *_: None)
    told: list[str] = []
    for nodes, spares in ((1, 1), (2, 0)):
        launch.start(fake.run, fake.cluster, LaunchConfig(nodes=nodes, spares=spares), told.append)
    assert told == ["1 node and 1 spare are up", "2 nodes and 0 spares are up"]


def test_a_start_that_fails_or_is_interrupted_detaches_the_run(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    detached: list[str] = []
    monkeypatch.setattr(launch, "attach", interrupted)
    monkeypatch.setattr(launch, "detach", lambda _engine, _cluster, run_id: detached.append(run_id))
    with pytest.raises(KeyboardInterrupt):
        launch.start(fake.run, fake.cluster, LaunchConfig(), print)
    assert detached == [fake.folder.run_id]


@pytest.mark.parametrize("is_there", [True, False])
def test_make_down_drains_the_cluster_before_it_destroys_anything(
    is_there: bool, tmp_path: Path
) -> None:
    for name in ("terraform", "headway"):
        tool = tmp_path / name
        tool.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n')
        tool.chmod(0o755)
    (tmp_path / "python").write_text("#!/bin/sh\necho '[]'\n")  # nothing is left here
    (tmp_path / "python").chmod(0o755)
    cluster = tmp_path / "cluster"
    if is_there:
        cluster.mkdir()
        (cluster / "cluster.json").touch()
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CLUSTER_DIR": str(cluster)}
    done = subprocess.run(
        [str(DOWN), "local"], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    drained = [number for number, call in enumerate(calls) if call.startswith("headway")]
    assert [calls[number] for number in drained] == is_there * [f"headway cluster drain {cluster}"]
    destroyed = [number for number, call in enumerate(calls) if " destroy " in call]
    assert len(destroyed) == is_there, "without a cluster nothing is destroyed"
    assert all(number < destroyed[0] for number in drained)


def test_earlier_configurations_stay_and_the_difference_is_told(fake: FakeRun) -> None:
    folder, first = fake.folder.path, fake.folder.config.read_text()
    assert launch.keep_config(fake.run, fake.config) == []
    assert not (folder / "config-1.toml").exists(), "nothing has changed"
    longer = replace(fake.config, train=replace(fake.config.train, steps=80, dtype="bf16"))
    (line,) = launch.keep_config(fake.run, longer)
    told, _, where = line.partition("; ")
    assert told == "resuming with train.dtype fp32 -> bf16, train.steps 40 -> 80"
    assert where == "the configuration before is in config-1.toml"
    fake.folder.config.write_text("no_such_table = 1\n")  # as another version may have written it
    (line,) = launch.keep_config(fake.run, fake.config)
    assert "config-2.toml" in line
    assert (folder / "config-1.toml").read_text() == first == fake.folder.config.read_text()
    assert (folder / "config-2.toml").read_text() == "no_such_table = 1\n"


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({}, True),
        ({"standbys": 3}, True),
        ({"spares": 5}, False),
        ({"nodes": 2, "ranks_per_node": 1}, False),
    ],
)
def test_snapshots_in_memory_are_kept_only_where_the_same_nodes_start_again(
    fake: FakeRun, changed: dict[str, int], same: bool
) -> None:
    old = fake.run.config
    new = replace(old, launch=replace(old.launch, **changed))
    assert launch.has_same_nodes(fake.run, new) is same
    fake.folder.config.unlink()
    assert not launch.has_same_nodes(fake.run, old)


def test_a_measurement_of_the_peak_says_why_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = Peak("cpu", "x", 2, {"fp32": 1.0}, waited=0.0)
    busy = replace(idle, waited=0.5)
    said: list[str] = []

    def measure(known: Peak | None, found: Peak) -> list[str]:
        monkeypatch.setattr(launch, "cached_peak", lambda _: known)
        monkeypatch.setattr(launch, "machine_peak", lambda _: found)
        said.clear()
        launch.measure_peak("cpu", said.append)
        return said

    assert measure(idle, idle) == []
    assert measure(None, idle) == ["measuring this machine's peak for MFU"]
    again, left_out = measure(busy, busy)
    assert again.endswith("peak for MFU again: it was busy the last time")
    assert left_out.startswith("the machine is busy: MFU is left out")


def test_a_peak_that_cannot_be_measured_is_said_and_does_not_stop_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: str) -> Peak:
        raise HeadwayError("no torch", remedy="install it")

    monkeypatch.setattr(launch, "cached_peak", lambda _: None)
    monkeypatch.setattr(launch, "machine_peak", fail)
    said: list[str] = []
    launch.measure_peak("cpu", said.append)
    assert said[1:] == ["no torch; install it"]


@pytest.mark.parametrize(
    ("text", "name"),
    [("tiny", "tiny"), ("my model", "my-model"), ("a=b (2)", "a-b-2"), ("...", "run")],
)
def test_a_run_is_called_after_its_file_as_a_folder_can_be(text: str, name: str) -> None:
    assert launch.run_name(text) == name
