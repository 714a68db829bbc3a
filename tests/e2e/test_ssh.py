"""Machines that are reached by ssh: a real sshd on each, keys, and what ssh refuses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from headway.console.run import Run
from headway.testkit.bed.node import Node
from headway.testkit.journal import query
from headway.testkit.machines import Machines
from headway.testkit.machines.ssh import Ssh
from headway.testkit.machines.waits import (
    first_step,
    is_stepping,
    until,
    until_over,
    until_recovered,
)

from benchmarks.digest import final_digest

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"
MODEL = (
    "model.layers=2", "model.hidden=64", "model.heads=4", "model.seq_len=64",
    "train.eval_batches=1", "train.eval_every=0", "train.sample_tokens=0", "train.dtype=fp32",
    "parallel.pp=1", "parallel.dp=2", "parallel.tp=1", "train.global_batch_size=4",
    "ckpt.durable_every=5", "train.steps=100000",
)  # fmt: skip
LIMIT_S = 150.0


@pytest.fixture(scope="module")
def machines(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path
) -> Iterator[Machines]:
    if reason := Machines.missing() or Ssh.missing():
        pytest.skip(f"no machines with ssh here: {reason}")
    folder = tmp_path_factory.mktemp("machines")
    visible = [corpus, cache, TINY.parent]
    with Machines(folder, count=3, visible=visible, way="ssh") as found:
        found.env["HEADWAY_CACHE"] = str(cache)
        yield found


def _ours(node: Node) -> list[str]:
    """Processes of the node but its sshd."""
    found = []
    for one in node.processes():
        try:
            words = Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] and b"sshd" not in words[0]:
            found.append(b" ".join(words[:5]).decode())
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_over_ssh_outlives_the_machine_of_its_driver_and_resumes(
    machines: Machines, corpus: Path
) -> None:
    machines.run(TINY, "a", *MODEL, f"data.path={corpus}")
    before = until(machines, "a", lambda s: is_stepping(s, 6), "the run does not step")
    machines.bed.node(0).kill()
    after = until_recovered(machines, "a", before)
    assert after["epoch"] > before["epoch"], "its driver was on node 0"
    machines.boot(0)
    until(machines, "a", lambda s: s["nodes"].get("0") == "spare", "the machine does not return")
    _stop(machines, "a")
    machines.headway("logs", "a")
    assert {"n0", "n1"} <= {path.name[:2] for path in (machines.runs / "a").glob("logs/*")}
    stopped_at = json.loads(machines.headway("status", "a", "--json", check=False).stdout)["step"]
    assert stopped_at > 0
    machines.run(TINY, "a", *MODEL, f"data.path={corpus}")  # resumes: each machine joins anew
    resumed = until(machines, "a", lambda s: is_stepping(s, stopped_at), "it does not resume")
    assert first_step(machines, "a", resumed["generation"]) >= stopped_at, "it has begun anew"
    _stop(machines, "a")


@pytest.mark.timeout(300)
def test_a_run_over_ssh_trains_to_its_end_and_leaves_nothing(
    machines: Machines, corpus: Path
) -> None:
    options = machines.options((*MODEL, f"data.path={corpus}", "train.steps=20"))
    done = machines.headway("run", TINY, "--name", "c", *options, timeout_s=LIMIT_S)
    assert "run c: finished after step 20/20" in done.stdout
    _wait_until_empty(machines)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_machines_that_are_destroyed_are_rebuilt_and_their_nodes_are_spares_again(
    machines: Machines, corpus: Path
) -> None:
    """The second one hosts the driver, and loses nothing of what the first one's spare has done."""
    settings = (*MODEL, f"data.path={corpus}", "train.steps=300", "recovery.replace_after_s=5")
    machines.headway("run", TINY, "--name", "whole", *machines.options(settings), timeout_s=LIMIT_S)
    machines.run(TINY, "r", *settings)
    before = until(machines, "r", lambda s: is_stepping(s, 6), "the run does not step")
    for lost in (1, 0):
        machines.destroy(lost)
        before = until_recovered(machines, "r", before)
        machines.headway("pause", "r")  # so that it does not end meanwhile
        ready = until(machines, "r", partial(_is_spare, lost), "it is not rebuilt")
        assert ready["machines"] == {}
        machines.headway("resume", "r")
    done = until_over(machines, "r")
    assert done["phase"] == "finished", done
    found = [(name, row["node"]) for name, row in _events(machines, "r") if "machine" in name]
    assert found == [
        (name, node) for node in (1, 0) for name in ("machine_ordered", "machine_delivered")
    ]
    digests = {final_digest(Run(machines.runs / name)) for name in ("whole", "r")}
    assert len(digests) == 1, "a step was lost, or made twice"
    _wait_until_empty(machines)


def _is_spare(node: int, status: Mapping[str, Any]) -> bool:
    return bool(status["nodes"].get(str(node)) == "spare")


def _events(machines: Machines, name: str) -> list[tuple[str, dict[str, Any]]]:
    rows = query(Run(machines.runs / name), "SELECT name, fields FROM events ORDER BY id")
    return [(event, json.loads(fields)) for event, fields in rows]


def _stop(machines: Machines, name: str) -> None:
    """With a checkpoint; returns once nothing of the run is left on any machine."""
    machines.headway("stop", name)
    _wait_until_empty(machines)


def _wait_until_empty(machines: Machines) -> None:
    deadline = time.monotonic() + LIMIT_S
    while left := [line for node in machines.bed.nodes for line in _left_on(machines, node)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.3)


def _left_on(machines: Machines, node: Node) -> list[str]:
    """Processes and files of runs."""
    return [*_ours(node), *machines.files_of_runs(node)]


def _refused(machines: Machines, corpus: Path, hosts: str) -> str:
    """The error of a start with another list of machines: one line, and nothing is left."""
    file = machines.shared / "other.toml"
    file.write_text(hosts)
    cluster = machines.runs / f".cluster-{time.monotonic_ns()}"
    machines.headway("cluster", "create", cluster, "--hosts", file)
    shared = set(machines.shared.iterdir())
    options = machines.options((*MODEL, f"data.path={corpus}"))[:-1]
    done = machines.headway("run", TINY, "--name", "b", *options, cluster, check=False)
    assert done.returncode != 0
    [line] = done.stderr.splitlines()
    assert line.startswith("error: "), line
    assert "; check that it is up and that you can log in without a password" in line
    assert not (machines.runs / "b").exists()
    assert set(machines.shared.iterdir()) == shared
    assert not [one for node in machines.bed.nodes for one in _left_on(machines, node)]
    return line


@pytest.mark.timeout(300)
def test_a_machine_that_does_not_let_us_in_is_named(machines: Machines, corpus: Path) -> None:
    assert machines.ssh is not None
    other = machines.shared / "ssh" / "other"
    other.write_text(machines.ssh.config.read_text().replace(f"{machines.ssh.key}\n", "/no/key\n"))
    text = machines.file.read_text().replace(str(machines.ssh.config), str(other))
    line = _refused(machines, corpus, text)
    assert "node-0 cannot be reached" in line and "Permission denied" in line


@pytest.mark.timeout(300)
def test_a_machine_that_ssh_does_not_know_is_named(machines: Machines, corpus: Path) -> None:
    text = machines.file.read_text().replace('name = "node-2"', 'name = "no-such-host"')
    assert "no-such-host cannot be reached" in _refused(machines, corpus, text)
