"""What the containers of a rendered Job run, on machines of a bed in place of pods."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headway.common.config import load
from headway.console.pods.manifests import manifests
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.engines.kubernetes.pod import AGAIN
from headway.testkit.bed import Bed, Process
from headway.testkit.bed.node import Node
from headway.testkit.machines.waits import is_stepping
from headway.trainer.config import RunConfig

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"
MODEL = (
    "model.layers=2", "model.hidden=64", "model.heads=4", "model.seq_len=64",
    "train.eval_batches=1", "train.eval_every=0", "train.sample_tokens=0", "train.dtype=fp32",
    "parallel.pp=1", "parallel.dp=2", "parallel.tp=1", "train.global_batch_size=4",
    "ckpt.durable_every=5", "train.steps=100000", "train.device=cpu",
    "launch.nodes=2", "launch.ranks_per_node=1", "launch.spares=1",
)  # fmt: skip
RUNS = "scratch/*/runs"
API, PORT = 3, 6443
"""Node of the bed that stands in for the API server."""
OUTAGE_S = 20.0
"""Longer than it takes to replace a driver that does not renew its lease."""
LIMIT_S = 150.0
pytestmark = pytest.mark.slow  # four minutes


class Pods:
    """A Job: its pods, each on a machine of its own, with one folder as the claim. ``keep`` starts
    those again that have failed, as Kubernetes does."""

    def __init__(self, bed: Bed, folder: Path, corpus: Path) -> None:
        self.bed = bed
        server = bed.node(API).address
        (folder / "claim" / "api").mkdir()
        self.config = KubernetesConfig(
            image="headway",
            claim="headway",
            shared=str(folder / "claim"),
            scratch=str(bed.disk / "scratch"),
            python=sys.executable,
            api=f"https://{server}:{PORT}",
            account=str(folder / "claim" / "api" / "account"),
        )
        words = [str(folder / "claim" / "api"), server, str(PORT), "train", "tiny"]
        module = [sys.executable, "-m", "headway.testkit.played.kubernetes_api"]
        self.api = bed.node(API).start([*module, *words])
        run = load(RunConfig, [TINY], [*MODEL, f"data.path={corpus}"])
        secret, *_, job = manifests(run, self.config, "tiny")
        self.secret = folder / "claim" / "secret"
        self.secret.mkdir()
        for name, text in secret["stringData"].items():
            (self.secret / name).write_text(text)
        self.shared = Path(json.loads(secret["stringData"]["bundle.json"])["shared"])
        [container] = job["spec"]["template"]["spec"]["containers"]
        *self.command, _ = container["command"]
        self.running: dict[int, Process] = {}
        self.restarts = [0] * job["spec"]["completions"]

    def start(self, index: int) -> None:
        """A new pod: nothing is left in its folder."""
        node = self.bed.node(index)
        shutil.rmtree(node.root / "scratch", ignore_errors=True)
        words = [*self.command, str(self.secret / "bundle.json")]
        env = {"JOB_COMPLETION_INDEX": str(index), "OMP_NUM_THREADS": "1"}
        self.running[index] = node.start(words, env=env)

    def lose(self, index: int) -> None:
        """The machine has no power, and returns."""
        self.bed.node(index).kill()
        del self.running[index]

    def keep(self) -> None:
        """Start failed pods again."""
        for index, process in list(self.running.items()):
            if process.poll():
                self.restarts[index] += 1
                self.start(index)

    def headway(self, node: Node, *words: str) -> Any:
        """What a command of the console in a pod prints, as by ``kubectl exec``; {} if it fails."""
        runs = [self.bed.disk / path.relative_to(node.root) for path in node.root.glob(RUNS)]
        if not runs:
            return {}  # the pod has not joined yet
        command = [sys.executable, "-m", "headway.console", *words, "--json"]
        done = node.run([*command, "--runs-dir", str(runs[0])], check=False, timeout_s=90.0)
        return json.loads(done.stdout.splitlines()[-1]) if not done.returncode else {}

    def newest_step(self) -> int:
        """Of the run's journal, which is read without its driver."""
        with sqlite3.connect(f"file:{self.shared}/control/run.sqlite?mode=ro", uri=True) as journal:
            [[step]] = journal.execute("SELECT MAX(step) FROM metrics")
        return int(step)

    def output(self) -> str:
        """The ends of what the pods printed."""
        texts = [node.console.read_text(errors="replace") for node in self.bed.nodes]
        return "\n".join(f"==> {index} <==\n{text[-3000:]}" for index, text in enumerate(texts))


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Iterator[Pods]:
    if reason := Bed.missing():
        pytest.skip(f"no machines here: {reason}")
    folder = tmp_path_factory.mktemp("pods")
    for name in ("claim", "disks"):
        (folder / name).mkdir()
    visible = [corpus, TINY.parent]
    with Bed(folder / "disks", nodes=4, shared=[folder / "claim"], visible=visible) as bed:
        yield Pods(bed, folder, corpus)


def _until(pods: Pods, node: int, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What the run's driver reports, once it is so."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        pods.keep()
        found = pods.headway(pods.bed.node(node), "status", "tiny").get("status")
        if found and condition(found):
            return dict(found)
        assert time.monotonic() < deadline, f"{found}\n{pods.output()}"
        time.sleep(0.3)


@pytest.mark.timeout(600)
def test_pods_make_a_run_that_outlives_each_of_them_and_all_together(pods: Pods) -> None:
    for index in range(3):
        pods.start(index)
    found = _until(pods, 1, lambda s: is_stepping(s, 6) and s["nodes"].get("2") == "spare")
    assert not list((pods.shared / "control").glob("driver*")), "the lease is not a file"

    pods.api.send_signal(signal.SIGSTOP)
    before = pods.newest_step()
    time.sleep(OUTAGE_S)
    assert pods.newest_step() > before, "an API server that is away stops no step"
    pods.api.send_signal(signal.SIGCONT)
    after = _until(pods, 1, lambda s: is_stepping(s, 6))
    assert (after["generation"], after["epoch"]) == (found["generation"], found["epoch"])

    pods.lose(0)  # with the first driver
    _until(pods, 1, lambda s: s["nodes"]["2"] != "spare" and is_stepping(s, 6))
    pods.bed.node(0).boot()
    pods.start(0)
    before = _until(pods, 1, lambda s: s["nodes"]["0"] == "spare" and is_stepping(s, 12))

    for index in range(3):
        pods.lose(index)
    for index in range(3):
        pods.bed.node(index).boot()
        pods.start(index)
    found = _until(pods, 0, lambda s: is_stepping(s, 12) and "spare" in s["nodes"].values())
    assert found["generation"] > before["generation"]


@pytest.mark.timeout(400)
def test_a_pod_that_is_taken_away_hands_over_and_all_end_with_the_run(pods: Pods) -> None:
    found = _until(pods, 0, lambda s: is_stepping(s, 12) and "spare" in s["nodes"].values())
    [spare] = [node for node, state in found["nodes"].items() if state == "spare"]
    leaving = next(index for index in (1, 2) if str(index) != spare)
    pods.running[leaving].send_signal(signal.SIGTERM)
    assert pods.running[leaving].wait(LIMIT_S) == AGAIN, pods.output()
    _until(pods, 0, lambda s: s["nodes"][spare] != "spare" and is_stepping(s, 12))
    pods.keep()
    _until(pods, 0, lambda s: s["nodes"][str(leaving)] == "spare")

    assert pods.headway(pods.bed.node(0), "stop", "tiny", "--no-wait"), pods.output()
    for index in range(3):
        assert pods.running[index].wait(LIMIT_S) == 0, pods.output()
    kept = {path.name for path in (pods.shared / "records").iterdir()}
    assert kept == {f"n{index}.txt" for index in range(3)}
