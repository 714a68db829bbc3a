"""A real Slurm on six machines: runs on it, lost machines, cancelled jobs. Nothing private crosses
the network by it, since it encrypts nothing."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store.client import newest
from headway.common.node.testing import wait_until
from headway.console.run import Run
from headway.testkit.bed import Stream, streams
from headway.testkit.bed.node import Node
from headway.testkit.journal import query
from headway.testkit.machines import Machines
from headway.testkit.machines.slurm import Slurm
from headway.testkit.machines.waits import is_stepping, until, until_recovered

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"
MODEL = (
    "model.layers=2", "model.hidden=64", "model.heads=4", "model.seq_len=64",
    "train.eval_batches=1", "train.eval_every=0", "train.sample_tokens=0", "train.dtype=fp32",
    "parallel.pp=1", "parallel.dp=2", "parallel.tp=1", "train.global_batch_size=4",
    "ckpt.durable_every=5", "train.steps=100000",
)  # fmt: skip
LIMIT_S = 150.0
DAEMONS = ("slurmd", "slurmctld", "munged", "slurmstepd", ": slurmscriptd")
BY_PIPELINE = ("parallel.pp=2", "parallel.dp=1")
"""Stages send each other far less than replicas do, all of which a capture records."""
LOGS_OF = """\
import sys
from pathlib import Path
from headway.launch.engines.choose import of_bundle
from headway.launch.join.bundle import Bundle
print(of_bundle(Bundle.load(Path(sys.argv[1]))).logs(int(sys.argv[2])))
"""
A_LINE = b'"event": "driver is up"'
TOKEN = re.compile(rb"[0-9]{10}\.[0-9]{1,9}\.[0-9a-f]{64}")
RECORDS = re.compile(rb"H4sI[A-Za-z0-9+/]{100}")
"""Of an archive made by gzip, in base64."""


@pytest.fixture(scope="module")
def machines(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path
) -> Iterator[Machines]:
    if reason := Machines.missing() or Slurm.missing():
        pytest.skip(f"no machines with Slurm here: {reason}")
    folder = tmp_path_factory.mktemp("machines")
    visible = [corpus, cache, TINY.parent]
    with Machines(folder, count=6, visible=visible, way="slurm") as found:
        found.env["HEADWAY_CACHE"] = str(cache)
        yield found


@pytest.fixture(autouse=True)
def nothing_left(machines: Machines) -> Iterator[None]:
    """After each test, however it ends: no job, process, shared memory or file."""
    yield
    slurm = machines.slurm
    assert slurm is not None
    slurm.wait_for_empty_queue(
        90.0
    )  # a job waits for a machine that had no power, until it is back
    deadline = time.monotonic() + 20.0
    up = [node for node in machines.bed.nodes if node.is_up]
    while left := [f"{node.name}: {line}" for node in up for line in _ours(machines, node)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.3)


def _ours(machines: Machines, node: Node) -> list[str]:
    """Processes and files of runs on the node."""
    found = []
    for one in node.processes():
        try:
            words = Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        line = b" ".join(words[:5]).decode().strip()
        if words[0] and not line.startswith(DAEMONS):
            found.append(line)
    return [*found, *machines.files_of_runs(node)]


def _start(machines: Machines, name: str, corpus: Path, *settings: str) -> dict[str, Any]:
    machines.run(TINY, name, *MODEL, f"data.path={corpus}", *settings, count=3)
    return until(machines, name, lambda s: is_stepping(s, 6), "the run does not step")


@pytest.mark.timeout(300)
def test_a_run_trains_on_steps_and_gives_the_machines_back(
    machines: Machines, corpus: Path
) -> None:
    words = [word for one in (*MODEL, f"data.path={corpus}") for word in ("--set", one)]
    done = machines.headway(
        "run", TINY, "--name", "a", "--engine", "slurm", *words, "--set", "train.steps=20",
        "--set", "launch.nodes=2", "--set", "launch.ranks_per_node=1",
    )  # fmt: skip
    assert "step 20" in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nodes_that_die_are_replaced_by_a_spare_and_then_by_further_jobs(
    machines: Machines, corpus: Path, tmp_path: Path
) -> None:
    with machines.bed.capture(tmp_path / "wire.pcap"):
        before = _start(machines, "b", corpus, *BY_PIPELINE)
        _read_logs(machines, "b")
        machines.bed.node(1).kill()
        before = until_recovered(machines, "b", before)
        assert machines.slurm is not None
        until(machines, "b", lambda s: s["nodes"].get("1") == "spare", "no further job joins")
    assert any(job.split()[0].endswith("-n1") for job in machines.slurm.queue())
    machines.bed.node(0).kill()
    before = until_recovered(machines, "b", before)
    machines.headway("stop", "b")
    machines.boot(0), machines.boot(1)  # a job on each removes the folder of its node
    _check_private(tmp_path / "wire.pcap", machines.runs / "b")


def _read_logs(machines: Machines, name: str) -> None:
    """In both ways: all records, and the ends of the logs, as where a driver does not start."""
    machines.headway("logs", name)
    assert {"n0", "n1"} <= {path.name[:2] for path in (machines.runs / name).glob("logs/*")}
    words = [sys.executable, "-c", LOGS_OF, machines.runs / name / "bundle.json", "0"]
    shown = machines.head.run(words, env=machines.env, cwd=machines.runs).stdout
    assert A_LINE.decode() in shown


def _check_private(capture: Path, run: Path) -> None:
    """The run's secret, the tokens of its tickets and its logs have not crossed in plain."""
    sent, secret = streams(capture), json.loads((run / "bundle.json").read_text())["secret"]
    words = [b"headway.launch.machine", b"--ticket", b"--answer"]
    for word in words:
        assert any(word in one.data for one in sent), "Slurm's own calls are in the capture"
    for private in (secret.encode(), A_LINE, b'"event"'):
        assert [_ends(one) for one in sent if private in one.data] == [], private
    for form in (TOKEN, RECORDS):
        assert [_ends(one) for one in sent if form.search(one.data)] == [], form


def _ends(one: Stream) -> str:
    return f"{one.source}:{one.source_port} -> {one.target}:{one.target_port}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lost_machine_is_replaced_below_its_own_leaf_switch(
    machines: Machines, corpus: Path
) -> None:
    """Two leaves of three machines: a replica on one of each, with two spares."""
    placed = ("launch.nodes=2", "launch.spares=4", "health.check_nodes=never")
    machines.run(TINY, "d", *MODEL, f"data.path={corpus}", *placed, count=6)
    spares = ("1", "2", "4", "5")

    def is_ready(status: dict[str, Any]) -> bool:
        return is_stepping(status, 6) and {status["nodes"][one] for one in spares} == {"spare"}

    before = until(machines, "d", is_ready, "the run does not step with four spares")
    assert [rank["node"] for rank in before["ranks"]] == [0, 3]
    assert "1 of 1 pairs of neighbours" in machines.headway("status", "d").stdout
    machines.bed.node(3).kill()
    after = until_recovered(machines, "d", before)
    assert [rank["node"] for rank in after["ranks"]] == [0, 4], "1 and 2 are below the other leaf"
    machines.headway("stop", "d")
    machines.boot(3)  # a job there removes the folder of its node


@pytest.mark.timeout(600)
def test_a_cancelled_job_stops_with_a_checkpoint(machines: Machines, corpus: Path) -> None:
    _start(machines, "c", corpus)
    assert machines.slurm is not None
    [job] = machines.slurm.queue()
    machines.head.run(["scancel", f"--name={job.split()[0]}"])
    machines.slurm.wait_for_empty_queue(30.0)
    status = machines.status("c")
    assert status["phase"] == "stopped", status
    run = Run(machines.runs / "c")

    def has_all_steps() -> bool:
        [(step,)] = query(run, "SELECT MAX(step) FROM metrics")
        found = newest(run.folder.checkpoints)
        return found is not None and found.step == step + 1

    wait_until(has_all_steps, what="a checkpoint of the last step", timeout_s=10.0)
