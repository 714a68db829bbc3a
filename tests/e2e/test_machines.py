"""Machines that share only a folder: they join a run, train it, and it outlives the loss of one."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import polars as pl
import pytest
from headway.common.errors import HeadwayError
from headway.common.node.process import ProcessId
from headway.common.node.testing import wait_until
from headway.common.wire.message import tag_of
from headway.console.analysis.clocks import Clocks
from headway.console.analysis.episodes import load_journal
from headway.console.analysis.events import load_events
from headway.console.folder.records import RunRecords
from headway.console.run import Run
from headway.health.client import verdicts_of
from headway.testkit.bed import Process, streams
from headway.testkit.bed.node import Node
from headway.testkit.bed.writes import Writes
from headway.testkit.machines import Machines
from headway.testkit.machines.fencing import EVENTS, writes_after_fencing
from headway.testkit.machines.waits import is_stepping, until, until_recovered
from headway.testkit.wire import all_messages

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "examples" / "tiny.toml"
NOTEBOOK = REPOSITORY / "notebooks" / "01_launch_and_steer.ipynb"
MODEL = (
    "model.layers=2", "model.hidden=64", "model.heads=4", "model.seq_len=64",
    "train.eval_batches=1", "train.eval_every=0", "train.sample_tokens=0", "train.dtype=fp32",
    "parallel.pp=2", "parallel.dp=1", "parallel.tp=1", "train.global_batch_size=4",
    "ckpt.durable_every=5",
)  # fmt: skip
OURS = [tag_of(message).encode() for message in all_messages()]
OURS += [b"all-arrived", b"grad_norm", b"learning_rate", b"secret", b"SELECT"]
"""Tags of all messages, a key of the ranks' store, fields: each would show in plain traffic."""
LIMIT_S = 150.0


@pytest.fixture(scope="module")
def machines(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path
) -> Iterator[Machines]:
    if reason := Machines.missing():
        pytest.skip(f"no separate nodes here: {reason}")
    folder = tmp_path_factory.mktemp("machines")
    with Machines(folder, count=3, visible=[corpus, cache, TINY.parent]) as found:
        found.env["HEADWAY_CACHE"] = str(cache)
        yield found


def _status(machines: Machines, name: str) -> dict[str, Any]:
    return machines.status(name).get("status") or {"ranks": [], "nodes": {}}


def _await_empty(machines: Machines) -> None:
    deadline = time.monotonic() + LIMIT_S
    while left := {node.name: node.processes() for node in machines.bed.nodes if node.processes()}:
        assert time.monotonic() < deadline, left
        time.sleep(0.3)


@pytest.mark.timeout(400)
def test_a_run_outlives_the_machine_of_its_driver_and_sends_nothing_in_plain(
    machines: Machines, corpus: Path, tmp_path: Path
) -> None:
    with machines.bed.capture(tmp_path / "wire.pcap"):
        settings = (*MODEL, f"data.path={corpus}", "train.steps=100000")
        machines.run(TINY, "a", *settings)
        before = until(machines, "a", lambda s: is_stepping(s, 6), "the run does not step")
        assert before["nodes"] == {"0": "active", "1": "active", "2": "spare"}
        nodes, listening = machines.bed.nodes, machines.bed.listening()
        assert {one.address for one in listening} <= {
            address for node in nodes for address in (node.address, node.fabric_address)
        }

        machines.bed.node(0).kill()
        after = until_recovered(machines, "a", before)
        assert after["epoch"] > before["epoch"] and after["generation"] > before["generation"]
        assert after["nodes"]["0"] == "lost" and after["nodes"]["2"] == "active"

        machines.bed.node(0).boot()
        until(machines, "a", lambda s: s["nodes"].get("0") == "spare", "it does not return")
    joined = [node for node in nodes if node is not machines.head]
    addresses = {one for node in joined for one in (node.address, node.fabric_address)}
    assert addresses <= _encrypted(tmp_path / "wire.pcap", machines.runs / "a")
    machines.headway("stop", "a")
    _await_empty(machines)
    stopped_at = json.loads(machines.headway("status", "a", "--json", check=False).stdout)["step"]
    machines.run(TINY, "a", *settings)  # resumes: each machine joins anew
    until(machines, "a", lambda s: is_stepping(s, stopped_at), "it does not resume")
    machines.headway("stop", "a", "--now")
    _await_empty(machines)


def _encrypted(capture: Path, run: Path) -> set[str]:
    """The addresses that have sent by CURVE; nothing of ours has crossed in plain. The traffic of
    torch.distributed is not encrypted, and has none of these texts."""
    sent, secret = streams(capture), json.loads((run / "bundle.json").read_text())["secret"]
    texts = [*OURS, secret.encode()]
    assert not [(text, one.source_port) for one in sent for text in texts if text in one.data]
    return {one.source for one in sent if one.data[12:17] == b"CURVE"}


def _takes_sigterm(process: Process) -> bool:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    [caught] = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


CONSOLES = Path(__file__).with_name("consoles")
"""What runs on a machine without torch."""


def _steer_without_torch(machines: Machines) -> None:
    """What the console offers, on a machine that has the console and no torch."""
    folder = machines.shared / "no-torch"
    shutil.copytree(CONSOLES, folder)
    head, path = machines.head, machines.head.environment["PYTHONPATH"]
    env = {**machines.env, "PYTHONPATH": f"{folder}:{path}"}

    def run(*words: str | Path) -> str:
        found = head.run([sys.executable, *words], env=env, cwd=machines.runs, timeout_s=LIMIT_S)
        return found.stdout

    def headway(*words: str) -> str:
        return run("-m", "headway.console", *words, "--runs-dir", str(machines.runs))

    with pytest.raises(HeadwayError, match="No module named 'torch'"):
        run("-c", "import torch")
    assert json.loads(headway("status", "d", "--json"))["phase"] == "running"
    headway("pause", "d"), headway("set", "d", "lr=1e-3"), headway("resume", "d")
    assert " n1-" in headway("logs", "d", "--tail", "200"), "of another machine"
    words = ["trace", "d", "--out", folder / "trace.json", "--runs-dir", machines.runs]
    trace = [sys.executable, "-m", "headway.console", *words]

    def is_traced() -> bool:  # as soon as a node has written records of steps
        return head.run(trace, env=env, cwd=machines.runs, check=False).returncode == 0

    wait_until(is_traced, what="a trace", timeout_s=LIMIT_S)
    assert {"n0", "n1"} <= {path.name[:2] for path in (machines.runs / "d").glob("logs/*")}
    assert (folder / "trace.json").stat().st_size > 1000
    watch = ["-m", "headway.console", "watch", "d", "--json", "--runs-dir", machines.runs]
    log = folder / "watch.log"
    watching = head.start([sys.executable, *watch], env=env, cwd=machines.runs, log=log)
    wait_until(lambda: '"step"' in log.read_text(), what="a line of watch", timeout_s=LIMIT_S)
    watching.kill()


def _execute_notebook_without_torch(machines: Machines, name: str) -> None:
    """Notebook 01 with its own line that attaches: it steers, kills a worker and stops the run."""
    head, folder = machines.head, machines.shared / "no-torch"
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    launch = re.compile(r"^run = cluster\.launch.*\n# or attach to .*: (run = .*)$", re.MULTILINE)
    cell = notebook.cells[1]
    cell.source, found = launch.subn(r"\1", cell.source)
    assert found == 1
    for old, new in (("../runs", str(machines.runs)), ('run("tiny")', f'run("{name}")')):
        assert old in cell.source
        cell.source = cell.source.replace(old, new)
    nbformat.write(notebook, folder / "attach.ipynb")
    env = {**machines.env, "PYTHONPATH": f"{folder}:{head.environment['PYTHONPATH']}"}
    env |= {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_RUNTIME_DIR": str(folder / "jupyter")}
    words = ["from nbclient.cli import main; main()", "attach.ipynb", "--inplace"]
    options = [f"--timeout={LIMIT_S:.0f}", "--KernelManager.transport=ipc"]
    head.run([sys.executable, "-c", *words, *options], env=env, cwd=folder, timeout_s=2 * LIMIT_S)
    shown = str(nbformat.read(folder / "attach.ipynb", as_version=4).cells)
    for part in ("RunConsole", "'replaced'", "'same process'", "checkpoint       step"):
        assert part in shown, part
    run = Run(machines.runs / name)
    assert run.outcome == "stopped" and (run.path / "trace.json.gz").exists()


def _steer_by_a_gateway(machines: Machines) -> None:
    """From a machine that has nothing but the key file: by the network, not by the runs' folder."""
    head, node, python = machines.head, machines.bed.node(2), [sys.executable, "-m"]
    words = ["--listen", f"tcp://{head.address}:0", "--key-file", "gateway.key"]
    started = [*python, "headway.console", "gateway", *words, "--runs-dir", str(machines.runs)]
    gateway = head.start(started, env=machines.env, cwd=machines.bed.disk)
    key = head.root / "gateway.key"
    wait_until(key.exists, what="the key file", timeout_s=LIMIT_S)
    (node.root / "gateway.key").touch(mode=0o600)
    (node.root / "gateway.key").write_text(key.read_text())

    folder = machines.shared / "no-torch"
    env = {**machines.env, "PYTHONPATH": f"{folder}:{node.environment['PYTHONPATH']}"}
    there = {"env": env, "cwd": machines.bed.disk}

    def headway(*words: str) -> str:  # which copies the run to ./runs
        command = [*python, "headway.console", *words]
        return node.run(command, **there, timeout_s=LIMIT_S).stdout

    def rate() -> float:
        last = "SELECT lr FROM metrics ORDER BY generation DESC, step DESC LIMIT 1"
        return float(Run(machines.runs / "d").query(last)[0][0])

    assert "d is live" in headway("attach", "gateway.key", "d")
    assert json.loads(headway("status", "d", "--json"))["status"]["phase"] == "running"
    headway("pause", "d", "--wait")
    assert _status(machines, "d")["paused"]
    headway("resume", "d")
    assert headway("set", "d", "lr=3e-4", "--wait") == "set lr=0.0003: applied to d\n"
    wait_until(lambda: rate() == 3e-4, what="the new rate", timeout_s=LIMIT_S)
    assert headway("unset", "d", "lr", "--wait") == "unset lr: applied to d\n"
    wait_until(lambda: rate() != 3e-4, what="the schedule's rate", timeout_s=LIMIT_S)
    assert " n1-" in headway("logs", "d", "--tail", "200"), "of another machine"
    copied = node.root / "runs" / "d"
    assert {"n0", "n1"} <= {path.name[:2] for path in copied.glob("logs/*")}
    log = node.root / "watch.log"
    words = ["headway.console", "watch", "d", "--every", "0.5"]
    watching = node.start([*python, *words], **there, log=log)

    def seen() -> set[str]:
        return set(re.findall(r"^step (\d+)/100000  loss ", log.read_text(), re.MULTILINE))

    wait_until(lambda: len(seen()) > 1, what="two lines of watch", timeout_s=LIMIT_S)
    watching.kill()
    done = json.loads(headway("trace", "d", "--out", "trace.json", "--json"))
    trace = json.loads((node.root / "trace.json").read_text())["traceEvents"]
    drawn = [one for one in trace if one["ph"] != "M"]  # the others are names of tracks
    assert done["slices"] == len(drawn) > 100
    assert len({one["pid"] for one in drawn if one["ph"] == "X"}) >= 2, "of both ranks"
    notebook = node.run([sys.executable, folder / "by_a_gateway.py"], **there, timeout_s=LIMIT_S)
    assert notebook.stdout == "True\n"
    gateway.kill()


@pytest.mark.timeout(400)
def test_a_machine_that_will_be_taken_away_hands_over_and_may_come_back(
    machines: Machines, corpus: Path, tmp_path: Path
) -> None:
    machines.run(TINY, "d", *MODEL, f"data.path={corpus}", "train.steps=100000")
    until(machines, "d", lambda s: is_stepping(s, 6), "the run does not step")
    _steer_without_torch(machines)
    with machines.bed.capture(tmp_path / "wire.pcap"):
        _steer_by_a_gateway(machines)
    encrypted = _encrypted(tmp_path / "wire.pcap", machines.runs / "d")
    assert {machines.head.address, machines.bed.node(2).address} <= encrypted
    kept = machines.keep("d", 1)
    wait_until(lambda: _takes_sigterm(kept), what="its handlers", timeout_s=LIMIT_S)
    kept.send_signal(signal.SIGTERM)
    status = until(
        machines, "d", lambda s: s["nodes"].get("2") == "active" and is_stepping(s, 6), "no drain"
    )
    assert status["nodes"]["1"] == "lost"
    assert kept.wait(LIMIT_S) == 0
    events = {name for (name,) in Run(machines.runs / "d").query("SELECT name FROM events")}
    assert "draining" in events and "evicted" in events
    assert "node_silent" not in events, "it was planned"
    again = machines.keep("d", 1)
    until(machines, "d", lambda s: s["nodes"].get("1") == "spare", "it does not come back")
    _execute_notebook_without_torch(machines, "d")
    assert again.wait(LIMIT_S) == 0, "the notebook has stopped the run"
    _await_empty(machines)


@pytest.mark.timeout(400)
def test_a_cut_of_the_fabric_names_both_machines_and_a_spare_takes_over(
    machines: Machines, corpus: Path
) -> None:
    machines.run(TINY, "e", *MODEL, f"data.path={corpus}", "train.steps=100000")
    before = until(machines, "e", lambda s: is_stepping(s, 6), "the run does not step")
    machines.cut_fabric(1)
    after = until_recovered(machines, "e", before)
    assert after["epoch"] == before["epoch"] and after["nodes"]["1"] == "lost"
    run = Run(machines.runs / "e")
    [cut] = [one for one in verdicts_of(run.folder.control) if one.kind == "fabric_cut"]
    assert cut.taken == "gave up node 1"
    assert cut.remedy.startswith("nodes 0 and 1 do not reach each other in the ranks' network")
    drained = machines.drained.read_text()
    assert drained.startswith("node-1 fabric_cut: nodes 0 and 1 do not reach"), drained

    machines.heal()
    machines.headway("node", "start", "--run", "e", "--node", "1")
    until(machines, "e", lambda s: s["nodes"].get("1") == "spare", "it does not return")
    machines.headway("stop", "e", "--now")
    _await_empty(machines)


@pytest.mark.timeout(400)
def test_a_driver_that_is_cut_off_ends_and_one_of_the_others_leads_alone(
    machines: Machines, corpus: Path
) -> None:
    machines.run(TINY, "f", *MODEL, f"data.path={corpus}", "train.steps=100000")
    before = until(machines, "f", lambda s: is_stepping(s, 6), "the run does not step")
    run, cut_off = Run(machines.runs / "f"), machines.bed.node(0)
    assert _drivers(cut_off), "the first driver is on the first machine"
    with Writes(machines.shared) as writes:
        machines.partition(0)
        after = until_recovered(machines, "f", before)
        assert after["epoch"] > before["epoch"]
        assert after["nodes"] == {"0": "lost", "1": "active", "2": "active"}
        wait_until(
            lambda: not _drivers(cut_off), what="the end of the former driver", timeout_s=LIMIT_S
        )
        machines.heal()
        until(machines, "f", lambda s: s["nodes"].get("0") == "spare", "it does not return")
        assert writes_after_fencing(run.query(EVENTS, (0,)), writes, cut_off) == []
        assert writes.of(cut_off), "it wrote before"
    assert [len(_drivers(node)) for node in machines.bed.nodes].count(1) == 1
    assert not _drivers(cut_off)
    for table in ("events", "inputs"):  # what a former driver writes would stand behind
        epochs = [epoch for (epoch,) in run.query(f"SELECT epoch FROM {table} ORDER BY id")]
        assert epochs == sorted(epochs) and len(set(epochs)) > 1
    machines.headway("stop", "f", "--now")
    _await_empty(machines)


def _drivers(node: Node) -> list[ProcessId]:
    found = []
    for one in node.processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
            if words[1:4] == [b"-m", b"headway.trainer", b"driver"]:
                found.append(one)
    return found


@pytest.mark.timeout(400)
def test_a_run_finishes_on_machines(machines: Machines, corpus: Path) -> None:
    settings = (*MODEL, f"data.path={corpus}", "train.steps=40")
    options = machines.options(settings)
    done = machines.headway("run", TINY, "--name", "b", *options, timeout_s=LIMIT_S)
    assert "run b: finished after step 40/40" in done.stdout
    assert "trace.json.gz" in done.stdout, "made of the records of all machines"
    links = machines.runs / "b"
    assert (links / "checkpoints").is_symlink() and (links / "control").is_symlink()
    _has_one_clock(links)


def _has_one_clock(run: Path) -> None:
    """The monotonic clocks of these machines are 1,000 s apart; ranks take each step together."""
    steps = load_events(run).filter(pl.col("action") == "STEP", pl.col("end_ns").is_not_null())
    spans = steps.group_by("step").agg(
        nodes=pl.col("node").n_unique(), begin=pl.col("start_ns").max(), end=pl.col("end_ns").min()
    )
    both = spans.filter(pl.col("nodes") == 2)
    assert both.height >= 10 and (both["begin"] < both["end"]).all()
    known = Clocks(RunRecords(run)).uncertainty_ns()
    assert set(known) == {0, 1} and all(one is not None and one < 50e6 for one in known.values())
    journal = load_journal(RunRecords(run))
    first = journal.filter(pl.col("name") == "generation")["monotonic_s"][0]
    assert first * 1e9 < steps["start_ns"].min() < journal["monotonic_s"].max() * 1e9


BAD = [
    pytest.param(["launch.interface="], 2, "launch.interface is not set", id="no interface"),
    pytest.param(["launch.spares=9"], 2, "the run needs 11 nodes, hosts.toml lists 3", id="few"),
    pytest.param(["launch.interface=eth7"], 2, "no interface or address 'eth7'", id="unknown"),
    # one port holds the executor, but not the driver and the monitor
    pytest.param(["launch.ports=20007-20007"], 1, "ports 20007-20007 are all in use", id="ports"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("settings", "code", "expected"), BAD)
def test_what_cannot_work_is_one_line_and_leaves_nothing(
    machines: Machines, corpus: Path, settings: list[str], code: int, expected: str
) -> None:
    shared, files = set(machines.shared.iterdir()), _files(machines)
    options = machines.options((*MODEL, f"data.path={corpus}", *settings))
    done = machines.headway("run", TINY, "--name", "c", *options, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and expected in line and "; " in line
    assert not (machines.runs / "c").exists()
    assert set(machines.shared.iterdir()) == shared
    assert not {node.name: node.processes() for node in machines.bed.nodes if node.processes()}
    assert _files(machines) <= files, "beside what `stop --now` of the other tests has left"


def _files(machines: Machines) -> set[str]:
    """What runs have on the machines. The folder of a node that ended in another way than with its
    run may stay, with its logs and without what admits to the run."""
    found, scratch = set[str](), f"{machines.scratch}/"
    for node in machines.bed.nodes:
        files = machines.files_of_runs(node)
        logged = {_of_node(one, scratch) for one in files if one.endswith(".log")}
        for one in files:
            is_secret = one.endswith((".key", "bundle.json", "joined.json"))
            if not one.startswith(scratch) or _of_node(one, scratch) not in logged or is_secret:
                found.add(f"{node.name}: {one}")
    return found


def _of_node(path: str, scratch: str) -> str:
    """The name of the folder of a node in which the file is."""
    return path.removeprefix(scratch).partition("/")[0]
