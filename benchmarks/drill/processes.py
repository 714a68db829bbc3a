"""D1, D2, D6 to D10, D12: processes that are silent without being dead, are looked at, or fail
repeatedly in the same way."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

from headway.common.errors import HeadwayError
from headway.common.node.arming import arm, fired
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.console.run import TERMINAL_OUTCOMES, Run
from headway.controller.faults import faults
from headway.testkit.journal import query

from benchmarks.drill import look
from benchmarks.drill.judge import Report
from benchmarks.drill.local import LEADERS
from benchmarks.drill.scene import Scene

MAX_CRASHES = 3
MOST_CRASHES = 12
"""Of D12: after so many the run should have failed long before."""


def d1(scene: Scene) -> Report:
    """STOP the driver's executor, its init, the driver and the monitor; 5 s later KILL a rank of
    the other node."""
    scene.launch()
    parts, victim = scene.parts(scene.home), scene.worker(scene.away.rank)
    stopped = [parts.services[name] for name in LEADERS] if scene.faulty else []
    generation, epoch = scene.before.generation, scene.before.epoch + scene.faulty
    try:
        for process in stopped:
            process.kill(signal.SIGSTOP)
        time.sleep(scene.rng.uniform(4.0, 6.0))
        victim.kill()
        scene.recover(lambda s: s.generation > generation and s.epoch >= epoch)
    finally:
        for process in stopped:
            process.kill(signal.SIGCONT)
    time.sleep(5.0)  # a process that woke up has had time to act
    return scene.end(epochs=[row["epoch"] for row in look.events_of(scene.run)])


def d2(scene: Scene) -> Report:
    """Another process holds the journal's write lock for 15 s."""
    scene.launch(more=40)
    scene.last("locked_journal", [], 15.0)
    scene.recover()
    return scene.end(
        monitors=len(look.of_role(scene.run, "monitor")),
        listens=any(listens(file) for file in announcements(scene.run)),
    )


def d9(scene: Scene) -> Report:
    """Freeze an executor for 30 s while a spare is ready."""
    scene.launch(more=40)
    run, before, away = scene.run, scene.before, scene.away
    look.seconds_until(lambda: look.reports(run, lambda s: "spare" in s.nodes.values()), 20.0)
    old = scene.worker(away.rank)
    scene.last("freeze", [scene.parts(away.node).services["executor"]], 30.0)
    scene.recover(lambda s: set(s.nodes.values()) <= look.WELL)
    if not look.reports(run, lambda s: s.generation == before.generation):
        look.seconds_until(lambda: not old.alive(), 15.0)
    return scene.end(old_worker_lives=old.alive())


def d10(scene: Scene) -> Report:
    """The run's clock goes back 120 s; KILL the executor whose rank reports the metrics."""
    scene.launch("parallel.pp=1", "parallel.dp=2", more=40)
    run, first = scene.run, min(row.node for row in scene.before.ranks)
    executor = scene.parts(first).services["executor"]
    told_s = before_s = newest_metrics(run)[1]
    if scene.faulty:
        faults.inject("clock_step", [executor], look.places_of(run, 0))
        look.seconds_until(lambda: newest_metrics(run)[1] < before_s - 60, 5.0)
        told_s = newest_metrics(run)[1]
    last, _ = newest_metrics(run)
    executor.kill()
    metrics_s = look.seconds_until(lambda: newest_metrics(run)[0] > last + 5, 10.0)
    scene.recover()
    return scene.end(metrics_s=metrics_s, clock_moved_s=told_s - before_s)


def newest_metrics(run: Run) -> tuple[int, float]:
    """The newest step whose metrics are stored, and when it was done by the wall clock of its
    rank; -1 before the first."""
    rows = query(run, "SELECT step, unix_s FROM metrics ORDER BY step DESC LIMIT 1")
    return rows[0][:2] if rows else (-1, 0.0)


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


def d6(scene: Scene) -> Report:
    """Freeze the zygote of a node; KILL the node's workers, standbys too."""
    scene.launch()
    row = scene.rng.choice(scene.before.ranks)
    look.seconds_until(lambda: scene.parts(row.node).standbys, 20.0)
    parts = scene.parts(row.node)
    if scene.faulty:
        scene.rig.hold(scene.run, "freeze", [parts.services["zygote"]], 110.0)
    for worker in (*parts.workers.values(), *parts.standbys):
        worker.kill()
    scene.recover(lambda s: row.pid not in look.pids_of(s).values())
    scene.rig.release()
    return scene.end()


def d7(scene: Scene) -> Report:
    """Attach a debugger to a rank for 3 s."""
    scene.launch("launch.spares=0", more=40)
    worker, attached = scene.worker(scene.rng.randrange(2)), False
    if scene.faulty:
        holder = scene.rig.hold(scene.run, "debugger", [worker], 3.0)
        attached = look.seconds_until(lambda: _is_traced(worker), 20.0) < 20.0
        look.seconds_until(lambda: not holder.alive(), 20.0)
    else:
        time.sleep(3.0)
    time.sleep(3.0)  # verdicts come late
    scene.recover()
    return scene.end(attached=attached)


def d8(scene: Scene) -> Report:
    """Freeze the data daemon of a node that feeds ranks for 12 s."""
    scene.launch(more=40)
    scene.last("freeze", [scene.parts(look.node_of(scene.before, 0)).services["dataloader"]], 12.0)
    scene.recover()
    return scene.end()


def d12(scene: Scene) -> Report:
    """A rank raises at one step, repeatedly; KILL the driver each time."""
    scene.launch(f"recovery.max_crashes={MAX_CRASHES}")
    run, rank, step = scene.run, scene.rng.randrange(2), scene.before.step + 60
    failpoints = NodePaths(run.folder.run_id, 0).failpoints
    rounds = range(MOST_CRASHES if scene.faulty else MAX_CRASHES)
    for number in rounds if scene.faulty else ():
        where = {"rank": rank, "step": step}
        arm(failpoints, "worker.mid_optimizer", "raise", where, key=f"d12-{number}")
    for number in rounds:

        def has_crashed(number: int = number) -> bool:
            return len(fired(failpoints)) > number or run.outcome in TERMINAL_OUTCOMES

        if scene.faulty and look.seconds_until(has_crashed, 60.0) > 60.0:
            break
        if run.outcome in TERMINAL_OUTCOMES:
            break
        time.sleep(scene.rng.uniform(0.0, 0.4))
        with contextlib.suppress(HeadwayError, KeyError, StopIteration):
            status = run.status(timeout_s=2.0)
            look.parts_of(run, status, look.home_of(status)).services["driver"].kill()
        if not scene.faulty:
            look.seconds_to_steps(run, 30.0)
    if scene.faulty:
        look.seconds_until(lambda: run.outcome in TERMINAL_OUTCOMES, 30.0)
    return scene.end(
        outcome=run.outcome,
        detail=run.fact("detail"),
        words=["mid_optimizer", "FailpointError", f"rank {rank}"],
        recoveries=max((row["generation"] for row in look.generations_of(run)), default=0),
        outcomes=("failed",) if scene.faulty else ("stopped",),
    )


def _is_traced(process: ProcessId) -> bool:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{process.pid}/status").read_text()
        return re.search(r"TracerPid:\s*[1-9]", text) is not None
    return False
