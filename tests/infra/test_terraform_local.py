"""The local target with the real terraform:
a dead node is seen, mended, and nothing stays after down."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store.client import newest
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "infra" / "terraform" / "targets" / "local"

pytestmark = pytest.mark.skipif(
    shutil.which("terraform") is None, reason="no terraform on the PATH"
)


class Terraform:
    """``make up`` and ``make down`` without make, and plans of the same state."""

    def __init__(self, machine: Any, name: str = "cluster") -> None:
        self.machine, self.folder = machine, machine.folder / name
        self.env = {**machine.env, "CLUSTER_DIR": str(self.folder),
                    "TF_DATA_DIR": str(self.folder / ".terraform"),
                    "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}  # fmt: skip

    def _run(self, *words: str, codes: tuple[int, ...] = (0,), **env: str) -> tuple[int, str]:
        done = subprocess.run(
            words,
            env={**self.env, **env},
            cwd=self.machine.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in codes, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.returncode, done.stdout + done.stderr

    def up(self, nodes: int, code: int = 0, **env: str) -> str:
        """What it printed."""
        words = (str(ROOT / "infra/terraform/up.sh"), "local", str(nodes))
        return self._run(*words, codes=(code,), **env)[1]

    def down(self) -> str:
        return self._run(str(ROOT / "infra/terraform/down.sh"), "local")[1]

    def look(self, verb: str, *words: str, code: int = 0) -> str:
        """What `status`, `logs` or `ssh` printed."""
        script = str(ROOT / f"infra/terraform/{verb}.sh")
        return self._run(script, "local", *words, codes=(code,))[1]

    def plan(self, nodes: int) -> tuple[int, set[int]]:
        """Exit code (0 no change, 2 changes) and the nodes to be replaced."""
        words = [
            "plan",
            "-input=false",
            "-no-color",
            "-detailed-exitcode",
            "-var",
            f"cluster_dir={self.folder}",
        ]
        code, text = self._run(
            "terraform", f"-chdir={TARGET}", *words, "-var", f"nodes={nodes}", codes=(0, 2)
        )
        touched = re.findall(r'# terraform_data\.(\w+)(?:\["(\d+)"\])? (?:must|will) be', text)
        assert all(kind == "node" for kind, _ in touched), text
        return code, {int(number) for _, number in touched}

    def pids(self, nodes: int) -> list[int]:
        cluster = ClusterFolder(self.folder)
        addresses = [cluster.address(node) for node in range(nodes)]
        assert all(address is not None and address.process.alive() for address in addresses)
        return [address.process.pid for address in addresses if address is not None]


def end_node(folder: Path, node: int) -> None:
    """Kill its init, then its executor, which nobody starts again."""
    cluster = ClusterFolder(folder)
    for process in (cluster.init(node), cluster.living(node)):
        assert process is not None and process.kill()


def test_every_target_is_formatted_and_valid_and_its_plans_hold(machine: Any) -> None:
    env = {name: text for name, text in machine.env.items() if name != "TF_PLUGIN_DIR"}
    done = subprocess.run([str(ROOT / "infra/terraform/test.sh")], env=env, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = done.stdout.splitlines()
    assert "ok       format" in lines
    for target, passed in (("local", 3), ("ssh", 5), ("slurm", 4)):
        assert f"ok       {target}: test: {passed} passed, 0 failed" in lines
    assert all(line.startswith(("ok ", "skipped ")) for line in lines)
    assert not machine.processes()


@pytest.mark.timeout(400)
def test_a_cluster_is_made_mended_grown_used_and_removed(machine: Any) -> None:
    tf = Terraform(machine)
    tf.up(2)
    first = tf.pids(2)
    assert len(machine.processes()) == 4, "an init and an executor each"
    assert tf.plan(2) == (0, set())
    assert tf.look("status").splitlines() == [f"{tf.folder}: 2 nodes, no drift", "no run"]
    text = tf.look("logs", "1")
    assert "==> n1-executor.log <==" in text and "==> n1-init.log <==" in text and "n0-" not in text
    assert tf.look("ssh", "1", "pwd").strip() == str(tf.folder)

    end_node(tf.folder, 1)
    machine.wait_until(lambda: len(machine.processes()) == 2, "the node is dead")
    assert tf.plan(2) == (2, {1})
    assert tf.look("status", code=2).splitlines() == [
        f"{tf.folder}: 2 nodes, drifted",
        "drift: node 1 has no init, which would restart its executor",
        "no run",
        'drift: terraform_data.node["1"] must be replaced',
        "repair: make up TARGET=local NODES=2",
    ]
    tf.up(2)
    mended = tf.pids(2)
    assert mended[0] == first[0], "a healthy node is left alone"
    assert mended[1] != first[1]
    assert tf.plan(2) == (0, set())

    tf.up(3)
    assert tf.pids(3)[:2] == mended, "growing leaves the nodes that stay alone"
    assert tf.plan(3) == (0, set())
    assert len(machine.processes()) == 6

    shape = ("parallel.pp=2", "parallel.dp=1", "launch.nodes=2", "launch.ranks_per_node=1",
             "launch.spares=0",
             "launch.standbys=1", "train.steps=5", "train.global_batch_size=4",
             "ckpt.durable_every=5")  # fmt: skip
    text = machine.headway("run", ROOT / "examples/tiny.toml", "--runs-dir", machine.runs,
                           "--cluster", tf.folder,
                           *machine.settings(shape))  # fmt: skip
    assert "run tiny: finished after step 5/5" in text
    machine.wait_until(lambda: len(machine.processes()) == 6, "only the nodes stay")
    assert tf.plan(3) == (0, set())

    listened = machine.listening()
    assert listened
    tf.down()
    machine.assert_clean("tiny", listened=listened)
    assert not tf.folder.exists()
    assert tf.down().startswith(f"{tf.folder} holds no cluster, nothing to do; `make up")
    assert not tf.folder.exists()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["my cluster", 'it\'s $HOME; "quoted"'])
def test_a_folder_may_have_blanks_and_quotes_in_its_name(name: str, machine: Any) -> None:
    tf = Terraform(machine, name)
    [command] = [line for line in tf.up(1).splitlines() if line.startswith("headway run ")]
    assert shlex.split(command)[-2:] == ["--cluster", str(tf.folder)]
    (pid,) = tf.pids(1)
    assert tf.plan(1) == (0, set())
    end_node(tf.folder, 0)
    machine.wait_until(lambda: not machine.processes(), "the node is dead")
    tf.up(1)
    assert tf.pids(1) != [pid]
    tf.down()
    assert not tf.folder.exists() and not machine.processes()
    assert {path.name for path in machine.folder.iterdir()} <= {"output.txt", "runs"}, (
        "nothing beside it"
    )


@pytest.mark.timeout(400)
def test_a_live_run_keeps_its_nodes_until_it_is_drained(machine: Any) -> None:
    tf = Terraform(machine)
    tf.up(3)
    before = tf.pids(3)
    shape = ("parallel.pp=2", "parallel.dp=1", "launch.nodes=2", "launch.ranks_per_node=1",
             "launch.spares=0", "launch.standbys=1", "train.steps=1000000",
             "train.global_batch_size=4", "ckpt.durable_every=1000000")  # fmt: skip
    where = ("--runs-dir", machine.runs, "--cluster", tf.folder)
    machine.in_process("run", "examples/tiny.toml", "--detach", *where, *machine.settings(shape))
    machine.wait_until(lambda: machine.status("tiny").get("step", 0) > 0, "the first step")

    text = tf.up(1, code=2)
    used = f"error: node 1 of {tf.folder} is used by run tiny, which is live; stop it first: "
    assert used in text and "Traceback" not in text
    assert tf.pids(3) == before, "nothing has ended"
    tf.up(2)
    assert tf.pids(2) == before[:2], "the third node carries nothing"
    step = machine.status("tiny")["step"]
    machine.wait_until(lambda: machine.status("tiny").get("step", 0) > step, "another step")

    text = tf.up(1, DRAIN="1")
    assert "run tiny is stopped; the newest checkpoint is of step" in text
    run = Run(machine.runs / "tiny")
    found = newest(run.folder.checkpoints)
    assert run.outcome == "stopped" and found is not None and found.step > step
    assert tf.pids(1) == before[:1] and tf.plan(1) == (0, set())
    machine.wait_until(lambda: len(machine.processes()) == 2, "one node stays")
    tf.down()
    machine.assert_clean("tiny")


def test_without_terraform_up_says_what_to_do(machine: Any) -> None:
    folder = machine.folder / "bin"
    folder.mkdir()
    for tool in ("bash", "dirname", "env"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    env = {**machine.env, "PATH": str(folder)}
    done = subprocess.run([str(ROOT / "infra/terraform/up.sh"), "local", "1"], env=env,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: no terraform on the PATH; install Terraform")
