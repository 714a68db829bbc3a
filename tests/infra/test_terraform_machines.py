"""Clusters of separate machines through the door: three with an sshd each, and those of a Slurm."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headway.testkit.bed.node import Node
from headway.testkit.machines import Machines
from headway.testkit.machines.slurm import Slurm
from headway.testkit.machines.ssh import Ssh
from headway.testkit.machines.waits import is_stepping, until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIMIT_S = 150.0
MODEL = (
    "model.layers=2", "model.hidden=64", "model.heads=4", "model.seq_len=64",
    "train.eval_batches=1", "train.eval_every=0", "train.sample_tokens=0", "train.dtype=fp32",
    "parallel.pp=1", "parallel.dp=2", "parallel.tp=1", "train.global_batch_size=4",
    "ckpt.durable_every=5", "train.steps=100000",
    "launch.ranks_per_node=1", "launch.nodes=2", "launch.spares=1",
)  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("terraform") is None, reason="no terraform on the PATH"),
]


class Door:
    """The scripts behind make's targets, on the console's machine of a bed."""

    def __init__(self, machines: Machines, target: str) -> None:
        self.machines, self.target = machines, target
        self.cluster = machines.runs / ".door"
        variable = "SLURM" if target == "slurm" else "HOSTS"
        bin_dir = machines.shared / "bin"
        bin_dir.mkdir()
        # an installed one may name a Python that the console's machine does not see
        command = bin_dir / "headway"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m headway.console "$@"\n')
        command.chmod(0o700)
        self._env = {
            **machines.env,
            "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}",
            "CLUSTER_DIR": str(self.cluster),
            variable: str(machines.file),
        }

    def __call__(self, verb: str, *words: str, code: int = 0, **env: str) -> Any:
        script = ROOT / "infra" / "terraform" / f"{verb}.sh"
        done = self.machines.head.run([script, self.target, *words], env={**self._env, **env},
                                      cwd=self.machines.runs, check=False,
                                      timeout_s=LIMIT_S)  # fmt: skip
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, corpus: Path, up: Any) -> None:
        """Start run "a" by the last line that `up` has printed; returns when it steps."""
        _, _, config, *words = shlex.split(up.stdout.splitlines()[-1])
        settings = [*MODEL, f"data.path={corpus}", f"launch.fabric={self.machines.bed.fabric}"]
        given = [word for one in settings for word in ("--set", one)]
        self.machines.headway("run", ROOT / config, "--name", "a", "--detach", *words, *given)
        until(self.machines, "a", lambda s: is_stepping(s, 3), "the run does not step")

    def wait_until_empty(self) -> None:
        """Returns once no machine has a process or a file of a run."""
        deadline = time.monotonic() + LIMIT_S
        while left := [one for node in self.machines.bed.nodes for one in self._left_on(node)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.3)

    def _left_on(self, node: Node) -> list[str]:
        ours = []
        for one in node.processes():
            try:
                words = Path(f"/proc/{one.pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"headway" in words and b"status_process" not in words:
                ours.append(words.replace(b"\0", b" ").decode()[:120])
        return [*ours, *self.machines.files_of_runs(node)]


def _door(factory: pytest.TempPathFactory, corpus: Path, cache: Path, way: Any) -> Iterator[Door]:
    with Machines(factory.mktemp(way), count=3, visible=[corpus, cache, EXAMPLES], way=way) as made:
        made.env["HEADWAY_CACHE"] = str(cache)
        yield Door(made, way)


@pytest.fixture
def ssh(tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path) -> Iterator[Door]:
    if reason := Machines.missing() or Ssh.missing():
        pytest.skip(f"no machines with ssh here: {reason}")
    yield from _door(tmp_path_factory, corpus, cache, "ssh")


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path) -> Iterator[Door]:
    if reason := Machines.missing() or Slurm.missing():
        pytest.skip(f"no machines of Slurm here: {reason}")
    yield from _door(tmp_path_factory, corpus, cache, "slurm")


def test_machines_with_ssh_from_up_to_down(ssh: Door, corpus: Path) -> None:
    machines, third = ssh.machines, ssh.machines.bed.node(2)
    third.kill()
    refused = ssh("up", code=1)
    assert refused.stderr.startswith("node-2: cannot be reached: ")
    assert len(refused.stderr.splitlines()) == 1 and not ssh.cluster.exists()
    machines.boot(2)

    ssh.start(corpus, ssh("up"))
    assert "run a: live, step " in ssh("status").stdout
    said = ssh("up", "2", code=2).stderr
    assert said.startswith("error: node-2 is used by run a, which is live; stop it first: ")
    assert ssh("ssh", "1", "hostname").stdout == "node-1\n"
    assert "==> n1-executor.log <==" in ssh("logs", "1").stdout

    third.kill()
    until(machines, "a", lambda s: s["nodes"].get("2") == "lost", "its loss is not noticed")
    drift = ssh("status", code=2).stdout
    assert "\ndrift: node-2: cannot be reached: " in drift
    assert "\ndrift: run a: node 2 is lost\n" in drift
    assert '\ndrift: terraform_data.machine["node-2"] must be replaced\n' in drift
    machines.boot(2)
    until(machines, "a", lambda s: s["nodes"].get("2") == "spare", "it does not return")
    assert "no drift" in ssh("status").stdout, "its driver has started the node again"

    assert "run a is stopped; the newest checkpoint is of step" in ssh("down").stdout
    assert not ssh.cluster.exists()
    ssh.wait_until_empty()


def test_a_smaller_cluster_of_machines_drains_the_run_that_uses_them(
    ssh: Door, corpus: Path
) -> None:
    ssh.start(corpus, ssh("up"))
    run_id = ssh.machines.head.run(["cat", ssh.machines.runs / "a" / "run.json"]).stdout
    run_id = run_id.partition('"run_id": "')[2][:8]
    drained = ssh("up", "2", DRAIN="1")
    assert "run a is stopped; the newest checkpoint is of step" in drained.stderr
    assert f"{ssh.cluster}: 2 nodes, no drift" in ssh("status").stdout

    env = {"HEADWAY_RUN_ID": run_id, "HEADWAY_ROLE": "rank"}
    stray = ssh.machines.bed.node(1).start(["sleep", "600"], env=env)
    said = ssh("down", code=1)
    assert "node-1: rank of " in said.stdout and "the lines above are left" in said.stderr
    stray.kill()
    stray.wait(20.0)
    ssh("down")
    assert not ssh.cluster.exists()
    ssh.wait_until_empty()


def test_machines_of_slurm_from_up_to_down(slurm: Door, corpus: Path) -> None:
    queue = slurm.machines.slurm
    assert queue is not None
    refused = slurm("up", "7", code=1)
    assert refused.stderr.startswith("error: 7 machines cannot be checked: Slurm refuses: ")
    assert not slurm.cluster.exists()
    queue.wait_for_empty_queue(LIMIT_S)

    slurm.start(corpus, slurm("up", "3"))
    assert "run a: live, step " in slurm("status").stdout
    said = slurm("up", "2", code=2).stderr
    assert said.startswith("error: a machine beyond 2 is used by run a, which is live; stop it")
    slurm("up", "3")
    slurm("up")
    assert "run a: live, step " in slurm("status").stdout, "a limit that goes ends no run"
    assert "node-1" in slurm("ssh", "1", "hostname").stdout
    slurm.machines.head.run(["scontrol", "update", "NodeName=node-2", "State=DRAIN", "Reason=fan"])
    drift = slurm("status", code=2).stdout
    assert "\ndrift: node-2: Slurm has it as drain" in drift and ": fan\n" in drift
    slurm.machines.head.run(["scontrol", "update", "NodeName=node-2", "State=RESUME"])

    assert "run a is stopped; the newest checkpoint is of step" in slurm("down").stdout
    assert not slurm.cluster.exists()
    queue.wait_for_empty_queue(LIMIT_S)
    slurm.wait_until_empty()
