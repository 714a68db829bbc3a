"""Machines that share only a folder: they join a run, train it, and it outlives the loss of one."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from headway.common.node.process import ProcessId
from headway.common.node.testing import wait_until
from headway.console.analysis.clocks import Clocks
from headway.console.analysis.episodes import load_journal
from headway.console.analysis.events import load_events
from headway.console.folder.records import RunRecords
from headway.console.run import Run
from headway.health.client import verdicts_of
from headway.launch.join import tokens
from headway.launch.join.bundle import Bundle
from headway.testkit.bed import Process
from headway.testkit.bed.node import Node
from headway.testkit.bed.writes import Writes
from headway.testkit.journal import query
from headway.testkit.machines import Machines
from headway.testkit.machines.encrypted import pairs_by_curve
from headway.testkit.machines.fencing import EVENTS, writes_after_fencing
from headway.testkit.machines.small import SMALL
from headway.testkit.machines.waits import (
    first_step,
    is_stepping,
    until,
    until_empty,
    until_recovered,
)

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "examples" / "tiny.toml"
LIMIT_S = 150.0
NAME = "shared"
STEADY = ["active", "active", "spare"]
NEWEST = "SELECT max(id) FROM events"


@pytest.mark.timeout(600)
def test_a_run_outlives_the_machine_of_its_driver_and_sends_nothing_in_plain(
    machines: Machines, corpus: Path, tmp_path: Path
) -> None:
    with machines.bed.capture(tmp_path / "wire.pcap"):
        machines.run(TINY, "a", *SMALL, f"data.path={corpus}", "train.steps=100000")
        before = until(machines, "a", lambda s: is_stepping(s, 6), "the run does not step")
        assert before["nodes"] == {"0": "active", "1": "active", "2": "spare"}
        nodes, listening = machines.bed.nodes, machines.bed.listening()
        assert listening
        assert {one.address for one in listening} <= {
            address for node in nodes for address in (node.address, node.fabric_address)
        }
        _check_refusals(machines, "a")
        assert machines.status("a")["status"]["nodes"] == before["nodes"]

        machines.bed.node(0).kill()
        after = until_recovered(machines, "a", before)
        assert after["epoch"] > before["epoch"] and after["generation"] > before["generation"]
        assert after["nodes"]["0"] == "lost" and after["nodes"]["2"] == "active"

        machines.bed.node(0).boot()
        until(machines, "a", lambda s: s["nodes"].get("0") == "spare", "it does not return")
    joined = [node for node in nodes if node is not machines.head]
    addresses = {one for node in joined for one in (node.address, node.fabric_address)}
    fabric = [node.fabric_address for node in nodes]
    pairs = pairs_by_curve(tmp_path / "wire.pcap", machines.runs / "a", fabric=fabric)
    assert addresses <= {source for source, _ in pairs}
    machines.headway("stop", "a", "--now")
    until_empty(machines)


def _steady(machines: Machines, corpus: Path) -> dict[str, Any]:
    """The status of the run that the next tests disturb, one after the other, up to its stop.

    Two of its machines train and the third is their spare; at first machine 0 leads and has rank 0,
    and 1 has rank 1. Begun or resumed where it is not live.
    """
    if not (machines.runs / NAME).exists() or Run(machines.runs / NAME).outcome:
        machines.run(TINY, NAME, *SMALL, f"data.path={corpus}", "train.steps=100000")

    def is_steady(status: dict[str, Any]) -> bool:
        return sorted(status["nodes"].values()) == STEADY and is_stepping(status, 6)

    return until(machines, NAME, is_steady, "the run does not step with a spare")


def _parts(machines: Machines, status: Mapping[str, Any]) -> tuple[int, int, int]:
    """The machines of the driver, of a rank without it, and the spare, by number."""
    [leads] = [node.index for node in machines.bed.nodes if _drivers(node)]
    active = [int(number) for number, state in status["nodes"].items() if state == "active"]
    [spare] = {int(number) for number in status["nodes"]} - set(active)
    return leads, max(number for number in active if number != leads), spare


def _check_refusals(machines: Machines, name: str) -> None:
    """The console's machine is not admitted in place of a node, and keeps nothing of the run."""
    head, other = machines.head, machines.bed.node(2)
    bundle = Bundle.load(machines.runs / name / "bundle.json")
    ticket = json.loads(machines.headway("node", "ticket", "--run", name, "--node", "2").stdout)

    def given(node: int, secret: str = bundle.secret, valid_s: float = 60.0) -> dict[str, Any]:
        return ticket | {"token": tokens.mint(secret, bundle.run_id, node, valid_s=valid_s)}

    strange = given(2, tokens.new_secret())
    _is_refused(machines, strange, f"the token does not belong to run {bundle.run_id}")
    _is_refused(machines, given(2, valid_s=-60.0), "the token expired ")
    _is_refused(machines, given(1), "the token is for node 1, not node 2")
    _is_refused(machines, ticket, "node 2 is another machine already, node-2, which reports")
    try:
        _set_machine_id(head, other.machine_id)
        _is_refused(machines, ticket, "node-3 has the machine id of node-2, which still reports")
    finally:
        _set_machine_id(head, head.machine_id)


def _is_refused(machines: Machines, ticket: Mapping[str, Any], expected: str) -> None:
    """By one line with a remedy, and no process and no file stays."""
    head, kept = machines.head, machines.files_of_runs(machines.head)
    assert head.processes() == []
    words = [sys.executable, "-m", "headway.launch.machine", "start", "--limit", "10"]
    done = head.run(words, stdin=json.dumps(ticket), check=False)
    assert done.returncode != 0 and done.stdout == "", done.stdout
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and expected in line, line
    assert "; " in line or "(" in line, "a remedy"
    assert head.processes() == [] and machines.files_of_runs(head) == kept


def _set_machine_id(node: Node, machine_id: str) -> None:
    node.run(["sh", "-c", 'echo "$0" > /etc/machine-id', machine_id])


def _takes_sigterm(process: Process) -> bool:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    [caught] = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.timeout(400)
def test_a_cut_of_the_fabric_names_both_machines_and_a_spare_takes_over(
    machines: Machines, corpus: Path
) -> None:
    before = _steady(machines, corpus)
    machines.cut_fabric(1)
    after = until_recovered(machines, NAME, before)
    assert after["epoch"] == before["epoch"] and after["nodes"]["1"] == "lost"
    run = Run(machines.runs / NAME)
    [cut] = [one for one in verdicts_of(run.folder.control) if one.kind == "fabric_cut"]
    assert cut.taken == "gave up node 1"
    assert cut.remedy.startswith("nodes 0 and 1 do not reach each other in the ranks' network")
    drained = machines.drained.read_text()
    assert drained.startswith("node-1 fabric_cut: nodes 0 and 1 do not reach"), drained

    machines.heal()
    machines.headway("node", "start", "--run", NAME, "--node", "1")
    until(machines, NAME, lambda s: s["nodes"].get("1") == "spare", "it does not return")


@pytest.mark.timeout(400)
def test_a_driver_that_is_cut_off_ends_and_one_of_the_others_leads_alone(
    machines: Machines, corpus: Path
) -> None:
    before = _steady(machines, corpus)
    lost, other, spare = _parts(machines, before)
    assert before["nodes"][str(lost)] == "active"
    run, cut_off = Run(machines.runs / NAME), machines.bed.node(lost)
    [(newest,)] = query(run, NEWEST)
    with Writes(machines.shared) as writes:
        machines.partition(lost)
        after = until_recovered(machines, NAME, before)
        assert after["epoch"] > before["epoch"]
        assert after["nodes"] == {str(lost): "lost", str(other): "active", str(spare): "active"}
        wait_until(
            lambda: not _drivers(cut_off), what="the end of the former driver", timeout_s=LIMIT_S
        )
        machines.heal()
        until(machines, NAME, lambda s: s["nodes"].get(str(lost)) == "spare", "it stays away")
        assert writes_after_fencing(query(run, EVENTS, (newest,)), writes, cut_off) == []
        assert writes.of(cut_off), "it wrote before"
    assert [len(_drivers(node)) for node in machines.bed.nodes].count(1) == 1
    assert not _drivers(cut_off)
    for table in ("events", "inputs"):  # what a former driver writes would stand behind
        epochs = [epoch for (epoch,) in query(run, f"SELECT epoch FROM {table} ORDER BY id")]
        assert epochs == sorted(epochs) and {before["epoch"], after["epoch"]} <= set(epochs)


@pytest.mark.timeout(400)
def test_a_machine_that_will_be_taken_away_hands_over_and_may_come_back(
    machines: Machines, corpus: Path
) -> None:
    _, leaves, spare = _parts(machines, _steady(machines, corpus))
    run = Run(machines.runs / NAME)
    [(newest,)] = query(run, NEWEST)
    kept = machines.keep(NAME, leaves)
    wait_until(lambda: _takes_sigterm(kept), what="its handlers", timeout_s=LIMIT_S)
    kept.send_signal(signal.SIGTERM)
    status = until(
        machines,
        NAME,
        lambda s: s["nodes"].get(str(spare)) == "active" and is_stepping(s, 6),
        "no drain",
    )
    assert status["nodes"][str(leaves)] == "lost"
    assert kept.wait(LIMIT_S) == 0
    events = {name for (name,) in query(run, "SELECT name FROM events WHERE id > ?", (newest,))}
    assert "draining" in events and "evicted" in events
    assert "node_silent" not in events, "it was planned"
    again = machines.keep(NAME, leaves)
    until(machines, NAME, lambda s: s["nodes"].get(str(leaves)) == "spare", "it does not come back")
    machines.headway("stop", NAME)
    assert again.wait(LIMIT_S) == 0
    until_empty(machines)


@pytest.mark.timeout(400)
def test_a_stopped_run_is_resumed_by_machines_that_join_anew(
    machines: Machines, corpus: Path
) -> None:
    folder = machines.runs / NAME
    if not folder.exists() or not Run(folder).outcome:  # else the test before has stopped it
        _steady(machines, corpus)
        machines.headway("stop", NAME)
        until_empty(machines)
    stopped_at = json.loads(machines.headway("status", NAME, "--json", check=False).stdout)["step"]
    resumed = _steady(machines, corpus)
    assert first_step(machines, NAME, resumed["generation"]) >= stopped_at > 0, "it has begun anew"
    machines.headway("stop", NAME, "--now")
    until_empty(machines)


def _drivers(node: Node) -> list[ProcessId]:
    found = []
    for one in node.processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
            if words[1:4] == [b"-m", b"headway.controller", b"driver"]:
                found.append(one)
    return found


@pytest.mark.timeout(400)
def test_a_run_finishes_on_machines_that_prepare_its_corpus(machines: Machines) -> None:
    text = machines.shared / "text"
    text.mkdir()
    for path in (REPOSITORY / "docs").glob("*.md"):
        shutil.copy(path, text)
    disk = machines.bed.disk / "prepared"  # each machine has its own
    data = (f"data.path={disk}", f"data.source={text}", "data.vocab_size=300")
    settings = (*SMALL, *data, "train.steps=40")
    options = machines.options(settings)
    done = machines.headway("run", TINY, "--name", "b", *options, timeout_s=LIMIT_S)
    assert "run b: finished after step 40/40" in done.stdout
    assert "trace.json.gz" in done.stdout, "made of the records of all machines"
    links = machines.runs / "b"
    assert (links / "checkpoints").is_symlink() and (links / "control").is_symlink()
    _has_one_clock(links)
    assert all((node.root / "prepared" / "meta.json").exists() for node in machines.bed.nodes)


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
    # one port holds the executor, but not the driver and the monitor; it waits for a driver that
    # starts again and again
    pytest.param(
        ["launch.ports=20007-20007"],
        1,
        "ports 20007-20007 are all in use",
        id="ports",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("settings", "code", "expected"), BAD)
def test_what_cannot_work_is_one_line_and_leaves_nothing(
    machines: Machines, corpus: Path, settings: list[str], code: int, expected: str
) -> None:
    shared, files = set(machines.shared.iterdir()), _files(machines)
    options = machines.options((*SMALL, f"data.path={corpus}", *settings))
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
