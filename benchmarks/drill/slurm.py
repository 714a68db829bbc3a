"""Runs on a real Slurm, struck by lost machines and by Slurm itself.

A controller and five slurmd on machines of this host (namespaces, see
``headway.testkit.machines.slurm``). A run takes three of them: two train, one is a spare. Each case
starts from a run that steps; times are from the fault to the first step of all ranks afterwards,
as the run's journal has it. At the end the run is started and stopped ten times, after which no
job, process or shared memory may be left.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headway.ckpt_store.client import CheckpointInfo, newest
from headway.common.wire.messages.driver import Status
from headway.testkit.bed.node import Node
from headway.testkit.machines import Machines

from benchmarks.drill.catalogue import Fault, Strike, faults_at, named
from benchmarks.drill.drilled import recover
from benchmarks.drill.look import events_of, measured_steps
from benchmarks.drill.machine_faults import STEP_LIMIT_S, Hit, command_of
from benchmarks.drill.machines import CONFIG, MachinesRun

SETTINGS = (
    "model.layers=2", "model.hidden=64", "model.heads=4", "model.seq_len=64",
    "train.eval_every=0", "train.sample_tokens=0", "train.dtype=fp32", "train.steps=1000000",
    "train.global_batch_size=4", "parallel.pp=1", "parallel.dp=2", "ckpt.durable_every=5",
)  # fmt: skip
AGAIN_LIMIT_S = 15.0
"""All ranks must step again within this time after the loss of a machine."""
SETTLE_S = 10.0
"""Before each fault: a spare that has just joined still imports torch."""
NODES = 3
"""Of each run, one of them a spare."""
TEARDOWNS = 10
TIME_LIMIT_MIN = 3
EARLY_S = 15.0
"""How long before the time limit a run must have stopped; Slurm gives notice 45 s before it. At the
limit itself Slurm sends SIGTERM, which stops the run, too."""


class SlurmRun(MachinesRun):
    """The run ``name``, begun here and making steps after that."""

    num_training = NODES - 1

    def __init__(self, machines: Machines, name: str, seed: int, *settings: str) -> None:
        machines.run(CONFIG, name, *SETTINGS, *settings, count=NODES)
        super().__init__(machines, name, seed)
        assert machines.slurm is not None
        self.slurm = machines.slurm
        self.keeps_off = False
        """Whether lost machines stay without power."""
        self.off: list[Node] = []
        self.strikes["stop_controller"] = self._stop_controller
        self.until(lambda: self.newest()[1] > 6, "no steps")

    def ready(self) -> Status:
        """Once a spare has had the time to import torch."""
        time.sleep(SETTLE_S)
        return self.status()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """What machines write is not looked at."""
        self._generation, self._began_unix_s = self.status().generation, time.time()
        yield

    def await_steps(self) -> None:
        """By the events of the journal."""
        if self._hit.begins_anew:
            self.until(lambda: self._stepped_after_s() < math.inf, f"{self.now}: no steps again")
            self._hit.facts["stepping_s"] = self._stepped_after_s()

    def undo(self) -> None:
        """Once there is a spare again: a further job, or the machine that was rebooted."""
        if not self._hit.begins_anew:
            return
        self.until(lambda: "spare" in self.states().values(), "no spare again")
        self._hit.facts["spare_again_s"] = time.monotonic() - self.now.struck_at_s
        if self.keeps_off:
            self.off.append(self._hit.node)
        else:
            self._hit.undo()

    def row(self) -> dict[str, Any]:
        """What was measured on the way."""
        return dict(self._hit.facts)

    def evidence(self) -> str:
        """What the run and Slurm say."""
        head, name = self.machines.head, self.run.name
        asked = (["squeue"], ["squeue", "--steps"], ["sinfo", "-N"])
        logs = self.machines.headway("logs", name, "-n", "30", check=False).stdout
        printed = [head.run(words, check=False).stdout for words in asked]
        return "\n".join([super().evidence(), logs, *printed, *self._remains()])

    def stop(self) -> None:
        """As a user would; returns once nothing is left."""
        self.machines.headway("stop", self.run.name)
        self.await_end()

    def await_end(self) -> dict[str, Any]:
        """Wait until only the shared folder is left of a run that has stopped; returns its newest
        checkpoint, which must be of its last step."""
        self.slurm.wait_for_empty_queue(STEP_LIMIT_S)
        self.until(lambda: not self._remains(), "no end of all")
        found: list[CheckpointInfo] = []

        def is_last() -> bool:
            info = last_checkpoint(self.run.folder.checkpoints, measured_steps(self.run))
            found.extend(filter(None, [info]))
            return bool(found)

        self.until(is_last, "no checkpoint of the last step")
        return {"checkpoint": found[0].path.name}

    def _stepped_after_s(self) -> float:
        """Seconds from the fault to the first step of a later generation, by the journal."""
        later = [
            row["unix_s"] - self._began_unix_s
            for row in events_of(self.run)
            if row["name"] == "stepping" and row["fields"]["generation"] > self._generation
        ]
        return round(min(later, default=math.inf), 1)

    def _has_ranks(self, node: Node) -> bool:
        """Also of the driver's: where only two train, a case is about a generation that follows."""
        return node.is_up

    def node(self, index: int) -> Node:
        return self.slurm.machine_of(index)

    def _stop_controller(self, fault: Fault, node: Node) -> Hit:
        """A run needs no controller."""
        before = self.status()
        self.slurm.stop_controller()
        time.sleep(fault.seconds)
        during = self.status()
        self.slurm.start_controller()
        time.sleep(5.0)
        after = self.status()
        assert before.generation == during.generation == after.generation, "a recovery"
        assert before.step < during.step < after.step, "it did not train on"
        return Hit(node, facts={"steps_meanwhile": during.step - before.step})

    def _remains(self) -> list[str]:
        """Processes and files of runs on machines, beside what these share."""
        up = [node for node in self.machines.bed.nodes if node.is_up]
        return [
            f"{node.name}: {line}"
            for node in up
            for line in [*processes_on(node), *self.machines.files_of_runs(node)]
        ]


class Cases:
    """What is tried on Slurm, in order; ``seed`` decides which machines are hit."""

    def __init__(self, machines: Machines, seed: int, *settings: str) -> None:
        self.machines, self._seed, self._settings = machines, seed, settings
        self._of_a_run: dict[str, Callable[[SlurmRun], dict[str, Any]]] = {
            **{fault.name: functools.partial(_struck, fault=fault) for fault in faults_at("slurm")},
            "use up the spares: a further job joins": self._further_jobs,
        }
        self._others: dict[str, Callable[[], dict[str, Any]]] = {
            "the time limit is near": self._time_limit,
            "scancel": self._cancel,
            f"{TEARDOWNS} starts and stops": self._teardowns,
        }

    def results(self, only: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and result of each case whose name contains ``only``."""
        chosen = {name: case for name, case in self._of_a_run.items() if only in name}
        if chosen:
            run = self._begin("faults")
            for name, case in chosen.items():
                yield name, case(run)
            run.stop()
        for name, alone in self._others.items():
            if only in name:
                yield name, alone()

    def _begin(self, name: str) -> SlurmRun:
        return SlurmRun(self.machines, name, self._seed, *self._settings)

    def _further_jobs(self, run: SlurmRun) -> dict[str, Any]:
        """Power off two training machines in turn, and boot neither until the end."""
        run.keeps_off = True
        rows = [_struck(run, named("lose node")) for _ in range(2)]
        jobs = len(run.slurm.queue())
        for machine in run.off:
            self.machines.boot(machine.index)
        run.keeps_off = False
        each = [row["stepping_s"] for row in rows]
        again = [row["spare_again_s"] for row in rows]
        return {"jobs": jobs, "stepping_s": max(each), "each_s": each, "spare_again_s": again}

    def _time_limit(self) -> dict[str, Any]:
        self.machines.env["SBATCH_TIMELIMIT"] = str(TIME_LIMIT_MIN)
        began = time.monotonic()
        run = self._begin("limited")
        del self.machines.env["SBATCH_TIMELIMIT"]
        return {"time_limit_s": 60.0 * TIME_LIMIT_MIN, **_ended(run, began)}

    def _cancel(self) -> dict[str, Any]:
        run = self._begin("cancelled")
        began = time.monotonic()
        [job] = run.slurm.queue()
        self.machines.head.run(["scancel", f"--name={job.split()[0]}"])
        return _ended(run, began)

    def _teardowns(self) -> dict[str, Any]:
        took = []
        for number in range(TEARDOWNS):
            run = self._begin(f"short-{number}")
            began = time.monotonic()
            run.stop()
            took.append(round(time.monotonic() - began, 1))
        return {"seconds": took}


def _struck(run: SlurmRun, fault: Fault) -> dict[str, Any]:
    return recover(run, Strike(fault))


def _ended(run: SlurmRun, began_s: float) -> dict[str, Any]:
    run.until(lambda: run.machines.status(run.run.name)["phase"] == "stopped", "no end")
    return {"stopped_after_s": round(time.monotonic() - began_s, 1), **run.await_end()}


def last_checkpoint(checkpoints: Path, steps: Sequence[int]) -> CheckpointInfo | None:
    """The newest complete checkpoint, if it was made after the last of these steps."""
    found = newest(checkpoints)
    return found if found is not None and steps and found.step == steps[-1] + 1 else None


def processes_on(node: Node) -> list[str]:
    """Those of runs on the node."""
    commands = [command_of(one.pid) for one in node.processes()]
    return [" ".join(words.split()[:5]) for words in commands if "headway" in words]


def judge(found: dict[str, Any]) -> list[str]:
    """What is wrong in the result of a case."""
    wrong = []
    if (took := found.get("stepping_s", 0.0)) > AGAIN_LIMIT_S:
        wrong.append(f"stepping again after {took} s, not {AGAIN_LIMIT_S:.0f}")
    latest_s = found.get("time_limit_s", math.inf) - EARLY_S
    if (stopped_s := found.get("stopped_after_s", 0.0)) > latest_s:
        wrong.append(f"stopped after {stopped_s} s, not {latest_s:.0f}: without notice")
    # the allocation, and one for each node at most
    if "jobs" in found and not 1 < found["jobs"] <= NODES + 1:
        wrong.append(f"{found['jobs']} jobs, not 2 to {NODES + 1}")
    return wrong
