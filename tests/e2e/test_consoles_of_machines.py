"""Consoles without torch steer a run on machines: by its folder, a notebook and a gateway."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from headway.common.errors import HeadwayError
from headway.common.node.testing import wait_until
from headway.console.run import Run
from headway.testkit.journal import query
from headway.testkit.machines import Machines
from headway.testkit.machines.encrypted import pairs_by_curve
from headway.testkit.machines.small import SMALL
from headway.testkit.machines.waits import is_stepping, until, until_empty

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "examples" / "tiny.toml"
NOTEBOOK = REPOSITORY / "notebooks" / "01_launch_and_steer.ipynb"
LIMIT_S = 150.0
NEW_RATE = 7e-4
"""No step of the schedule has it."""
CONSOLES = Path(__file__).with_name("consoles")
"""What runs on a machine without torch."""


def _rate(machines: Machines, name: str) -> float:
    """The learning rate of the newest step in the journal."""
    newest = "SELECT lr FROM metrics ORDER BY generation DESC, step DESC LIMIT 1"
    return float(query(Run(machines.runs / name), newest)[0][0])


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

    def status() -> dict[str, Any]:
        return dict(json.loads(headway("status", "d", "--json")))

    assert status()["phase"] == "running"
    assert headway("pause", "d", "--wait") == "pause: applied to d\n"
    held = status()["status"]
    assert held["paused"]
    assert headway("set", "d", f"lr={NEW_RATE:g}", "--wait") == "set lr=0.0007: applied to d\n"
    assert status()["status"]["paused"] and _rate(machines, "d") != NEW_RATE, "it takes a step"
    assert headway("resume", "d", "--wait") == "resume: applied to d\n"
    reached = max(rank["step"] for rank in held["ranks"])
    until(machines, "d", lambda s: is_stepping(s, reached), "it takes no step")
    assert not status()["status"]["paused"]
    wait_until(
        lambda: _rate(machines, "d") == NEW_RATE, what="the new learning rate", timeout_s=LIMIT_S
    )
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


def _execute_notebook(machines: Machines, name: str) -> None:
    """Notebook 01 with its own line that attaches: it steers, breaks and stops the run."""
    head, folder = machines.head, machines.shared / "no-torch"
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    launch = re.compile(r"^run = cluster\.launch.*\n# or attach to .*: (run = .*)$", re.MULTILINE)
    cell = notebook.cells[1]
    cell.source, found = launch.subn(r"\1", cell.source)
    assert found == 1
    for old, new in (("../runs", str(machines.runs)), ('run("tiny")', f'run("{name}")')):
        assert old in cell.source
        cell.source = cell.source.replace(old, new)
    cells = [cell for cell in notebook.cells if "run.wait(" in cell.source]
    assert len(cells) == 1  # this run has many steps left
    cells[0].source = cells[0].source.replace("run.wait(", "run.stop()\nrun.wait(")
    last = "import importlib.util\nprint('torch is', importlib.util.find_spec('torch'))"
    notebook.cells.append(nbformat.v4.new_code_cell(last))
    nbformat.write(notebook, folder / "attach.ipynb")
    env = {**machines.env, "PYTHONPATH": f"{folder}:{head.environment['PYTHONPATH']}"}
    env |= {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_RUNTIME_DIR": str(folder / "jupyter")}
    words = ["from nbclient.cli import main; main()", "attach.ipynb", "--inplace"]
    options = [f"--timeout={LIMIT_S:.0f}", "--KernelManager.transport=ipc"]
    head.run([sys.executable, "-c", *words, *options], env=env, cwd=folder, timeout_s=2 * LIMIT_S)
    cells = nbformat.read(folder / "attach.ipynb", as_version=4).cells
    shown = str([cell.get("outputs") for cell in cells])
    for part in (
        "RunConsole", "'replaced'", "checkpoint       step", "torch is None",
    ):  # fmt: skip
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

    found = headway("--cluster", "gateway.key", "status", "d", "--json")
    assert json.loads(found)["status"]["phase"] == "running"
    assert "d is live" in headway("attach", "gateway.key", "d")
    assert json.loads(headway("status", "d", "--json"))["status"]["phase"] == "running"
    headway("pause", "d", "--wait")
    assert machines.status("d")["status"]["paused"]
    headway("resume", "d")
    assert headway("set", "d", "lr=3e-4", "--wait") == "set lr=0.0003: applied to d\n"
    wait_until(lambda: _rate(machines, "d") == 3e-4, what="the new rate", timeout_s=LIMIT_S)
    assert headway("unset", "d", "lr", "--wait") == "unset lr: applied to d\n"
    wait_until(lambda: _rate(machines, "d") != 3e-4, what="the schedule's rate", timeout_s=LIMIT_S)
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_on_machines_is_steered_from_machines_without_torch(
    machines: Machines, corpus: Path, tmp_path: Path
) -> None:
    with machines.bed.capture(tmp_path / "wire.pcap"):
        machines.run(TINY, "d", *SMALL, f"data.path={corpus}", "train.steps=100000")
        until(machines, "d", lambda s: is_stepping(s, 6), "the run does not step")
        _steer_without_torch(machines)
        _steer_by_a_gateway(machines)
    fabric = [node.fabric_address for node in machines.bed.nodes]
    pairs = pairs_by_curve(tmp_path / "wire.pcap", machines.runs / "d", fabric=fabric)
    head, other = machines.head.address, machines.bed.node(2).address
    assert {(head, other), (other, head)} <= pairs, "by the gateway"
    _execute_notebook(machines, "d")
    until_empty(machines)
