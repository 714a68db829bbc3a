"""D6, D7, D8, D12: processes that hang, are looked at, or fail repeatedly in the same way."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import time
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.node.failpoints import arm, fired
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.common.wire.messages.driver import Status
from headway.console.run import TERMINAL_OUTCOMES
from headway.testkit.journal import query

from benchmarks.drills.judge import Report
from benchmarks.drills.place import events_of, status_of
from benchmarks.drills.rig import Rig

MAX_CRASHES = 3
MOST_CRASHES = 12
"""Of D12: after so many the run should have failed long before."""


def d6(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """Freeze the zygote of a node; KILL the node's workers, standbys too."""
    run = rig.launch("d6")
    before = rig.healthy(run, 10)
    row = rng.choice(before.ranks)
    zygote = rig.service(before, row.node, "zygote")
    rig.wait(lambda: len(rig.forked(run, row.node, zygote)) > 1, 20.0)
    if faulty:
        rig.strike(run, "freeze", [zygote], 110.0)
    for worker in rig.forked(run, row.node, zygote):
        worker.kill()
    recovered = rig.steps_on(run, 75.0, lambda s: row.pid not in {one.pid for one in s.ranks})
    rig.release()
    return {"recovered_s": recovered, "left": rig.finish(run)}


def d7(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """Attach a debugger to a rank for 3 s."""
    run = rig.launch("d7")
    before = rig.healthy(run, 10 + rng.randrange(40))
    worker, attached = rig.worker(before, rng.randrange(2)), False
    if faulty and shutil.which("gdb"):
        words = ["gdb", "-nx", "-batch", "-iex", "set auto-solib-add off", "-p", str(worker.pid)]
        child = subprocess.Popen(
            [*words, "-ex", "shell sleep 3"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            attached = rig.wait(lambda: _is_traced(worker), 20.0) < 20.0
            child.wait(60)
        finally:
            child.kill()
            child.wait()
    elif faulty:
        holder = rig.strike(run, "debugger", [worker], 3.0)
        attached = _is_traced(worker)
        rig.wait(lambda: not holder.alive(), 20.0)
    else:
        time.sleep(3.0)
    time.sleep(3.0)  # verdicts come late
    recovered = rig.steps_on(run, 30.0, lambda _: True)
    return {
        "attached": attached,
        "recovered_s": recovered,
        **_before_and_after(before, status_of(run)),
        "left": rig.finish(run),
    }


def d8(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """Freeze the data daemon of a node that feeds ranks for 12 s."""
    run = rig.launch("d8")
    before, begun = rig.healthy(run, 10 + rng.randrange(40)), time.monotonic()
    if faulty:
        daemon = rig.service(before, rig.node_of(before, 0), "dataloader")
        holder = rig.strike(run, "freeze", [daemon], 12.0)
        rig.wait(lambda: not holder.alive(), 30.0)
    else:
        time.sleep(12.0)
    recovered = rig.steps_on(run, 45.0, lambda _: True)
    return {
        "recovered_s": recovered,
        **_before_and_after(before, status_of(run)),
        "events": events_of(run, begun),
        "left": rig.finish(run),
    }


def d12(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """A rank raises at one step, repeatedly; KILL the driver each time."""
    run = rig.launch("d12", f"recovery.max_crashes={MAX_CRASHES}")
    before, rank = rig.healthy(run, 10), rng.randrange(2)
    failpoints, step = NodePaths(run.folder.run_id, 0).failpoints, before.step + 60
    if faulty:
        for number in range(MOST_CRASHES):
            where = {"rank": rank, "step": step}
            arm(failpoints, "worker.mid_optimizer", "raise", where, key=f"d12-{number}")
    for number in range(MOST_CRASHES):

        def has_crashed(number: int = number) -> bool:
            return len(fired(failpoints)) > number or run.outcome in TERMINAL_OUTCOMES

        if faulty and rig.wait(has_crashed, 60.0) > 60.0:
            break
        if run.outcome in TERMINAL_OUTCOMES or (not faulty and number == 3):
            break
        time.sleep(rng.uniform(0.0, 0.4))
        with contextlib.suppress(HeadwayError, AssertionError, StopIteration):
            status = run.status(timeout_s=2.0)
            rig.service(status, rig.home(status), "driver").kill()
        if not faulty:
            rig.steps_on(run, 30.0, lambda _: True)
    if faulty:
        rig.wait(lambda: run.outcome in TERMINAL_OUTCOMES, 30.0)
    generations = query(run, "SELECT MAX(generation) FROM generations")
    outcome, detail = run.outcome, run.fact("detail")
    return {
        "outcome": outcome,
        "detail": detail,
        "words": ["mid_optimizer", "FailpointError", f"rank {rank}"],
        "recoveries": int(generations[0][0] or 0),
        "outcomes": ("failed",) if faulty else ("stopped",),
        "left": rig.finish(run),
    }


def _is_traced(process: ProcessId) -> bool:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return next(line for line in lines if line.startswith("TracerPid:")).split()[1] != "0"
    return False


def _before_and_after(before: Status, after: Status | None) -> Report:
    return {
        "generation_before": before.generation,
        "generation_after": after.generation if after is not None else None,
        "pids_before": {row.rank: row.pid for row in before.ranks},
        "pids_after": {row.rank: row.pid for row in after.ranks} if after is not None else {},
    }
