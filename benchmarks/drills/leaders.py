"""D1, D2, D9, D10: a leader or a node that is silent without being dead."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.console.run import Run
from headway.controller.faults import faults
from headway.testkit.journal import query

from benchmarks.drills.judge import Report
from benchmarks.drills.place import events_of, members, status_of
from benchmarks.drills.rig import Rig


def d1(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """STOP the driver's executor, its init, the driver and the monitor;
    5 s later KILL a rank of the other node."""
    run = rig.launch("d1")
    before = rig.healthy(run, 10)
    home = rig.home(before)
    stopped = [rig.init(run, home), rig.executor(run, home)]
    stopped += [rig.service(before, home, name) for name in ("driver", "monitor")]
    rank = next(row.rank for row in before.ranks if row.node != home)
    victim = rig.worker(before, rank)
    try:
        if faulty:
            for process in stopped:
                process.kill(signal.SIGSTOP)
        time.sleep(rng.uniform(4.0, 6.0))
        victim.kill()
        recovered = rig.steps_on(
            run,
            30.0,
            lambda s: s.generation > before.generation and s.epoch >= before.epoch + faulty,
        )
    finally:
        for process in stopped:
            process.kill(signal.SIGCONT)
    time.sleep(5.0)  # a process that woke up has had time to act
    status = status_of(run)
    return {
        "recovered_s": recovered,
        "epoch_before": before.epoch,
        "epoch_after": status.epoch if status is not None else 0,
        "epochs": [row["epoch"] for row in events_of(run)],
        "left": rig.finish(run),
    }


def d2(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """Another process holds the journal's write lock for 15 s."""
    run = rig.launch("d2")
    before, begun = rig.healthy(run, 10 + rng.randrange(40)), time.monotonic()
    if faulty:
        holder = rig.strike(run, "locked_journal", [], 15.0)
        rig.wait(lambda: not holder.alive(), 30.0)
    else:
        time.sleep(15.0)
    recovered = rig.steps_on(run, 30.0, lambda _: True)
    after = status_of(run)
    return {
        "recovered_s": recovered,
        "generation_before": before.generation,
        "generation_after": after.generation if after is not None else None,
        "nodes": after.nodes if after is not None else {-1: "no status"},
        "lost": [row for row in events_of(run, begun) if row["name"] == "node_lost"],
        "monitors": len(monitors(run)),
        "listens": any(listens(file) for file in announcements(run)),
        "left": rig.finish(run),
    }


def d9(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """Freeze an executor for 30 s while a spare is ready."""
    run = rig.launch("d9")
    before = rig.healthy(run, 10 + rng.randrange(40))
    rig.wait(lambda: "spare" in (status_of(run) or before).nodes.values(), 20.0)
    away = next(row for row in before.ranks if row.node != rig.home(before))
    old = rig.worker(before, away.rank)
    if faulty:
        holder = rig.strike(run, "freeze", [rig.executor(run, away.node)], 30.0)
        rig.wait(lambda: not holder.alive(), 45.0)
    else:
        time.sleep(30.0)
    recovered = rig.steps_on(run, 45.0, lambda s: set(s.nodes.values()) <= {"active", "spare"})
    if not same_generation(run, before.generation):
        rig.wait(lambda: not old.alive(), 15.0)
    after = status_of(run)
    return {
        "recovered_s": recovered,
        "generation_before": before.generation,
        "generation_after": after.generation if after is not None else None,
        "nodes": after.nodes if after is not None else {-1: "no status"},
        "old_worker_lives": old.alive(),
        "left": rig.finish(run),
    }


def d10(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """The run's clock goes back 120 s; KILL the executor whose rank reports the metrics."""
    run = rig.launch("d10", "parallel.pp=1", "parallel.dp=2")
    before = rig.healthy(run, 10 + rng.randrange(40))
    victims = [rig.executor(run, node) for node in sorted({row.node for row in before.ranks})]
    told = before_s = reported_at(run)
    if faulty:
        faults.inject("clock_step", victims[:1], rig.places(run, 0))
        rig.wait(lambda: reported_at(run) < before_s - 60, 5.0)
        told = reported_at(run)
    last = newest_metrics(run)
    victims[0].kill()
    metrics = rig.wait(lambda: newest_metrics(run) > last + 5, 10.0)
    rig.steps_on(run, 30.0, lambda _: True)
    left = rig.finish(run)
    return {
        "metrics_s": metrics,
        "clock_moved_s": told - before_s,
        "metrics": sorted({int(row[0]) for row in query(run, "SELECT step FROM metrics")}),
        "left": left,
    }


def same_generation(run: Run, generation: int) -> bool:
    """Whether the run says that it is still in that generation."""
    status = status_of(run)
    return status is not None and status.generation == generation


def newest_metrics(run: Run) -> int:
    """The newest step whose metrics are stored, -1 before the first."""
    rows = query(run, "SELECT MAX(step) FROM metrics")
    return int(rows[0][0]) if rows and rows[0][0] is not None else -1


def reported_at(run: Run) -> float:
    """Wall-clock seconds at which the newest step was done, by the clock of its rank."""
    rows = query(run, "SELECT unix_s FROM metrics ORDER BY step DESC LIMIT 1")
    return float(rows[0][0]) if rows else 0.0


def monitors(run: Run) -> list[ProcessId]:
    """Every monitor of the run that lives."""
    return [process for process, role, _ in members(run) if role == "monitor"]


def announcements(run: Run) -> list[Path]:
    """Where agents of the nodes in use learn about the monitor, and the run's own file."""
    nodes = {row.node for row in run.status().ranks}
    node_files = [NodePaths(run.folder.run_id, node).sock_dir / "monitor.json" for node in nodes]
    return [file for file in [*node_files, run.path / "monitor.json"] if file.exists()]


def listens(file: Path) -> bool:
    """Whether somebody listens where an announcement says."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        facts: dict[str, Any] = json.loads(file.read_text())
        host, _, port = str(facts["endpoint"]).rpartition("/")[2].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=2.0):
            return True
    return False
