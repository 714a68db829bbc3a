"""Runs on a real Slurm: ``python -m benchmarks.slurm [--out FILE]``.

A controller and five slurmd on machines of this host (namespaces, see
``headway.testkit.machines.slurm``). A run takes three of them: two train, one is a spare. Each case
starts from a run that steps; times are from the fault to the first step of all ranks afterwards,
as the run's journal has it. At the end the run is started and stopped ten times, after which no
job, process or shared memory may be left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headway.ckpt_store.client import CheckpointInfo, newest
from headway.testkit.bed.node import Node
from headway.testkit.machines import Machines
from headway.testkit.machines.slurm import Slurm

from benchmarks.hardware import hardware

SETTINGS = (
    "model.layers=2", "model.hidden=64", "model.heads=4", "model.seq_len=64",
    "train.eval_every=0", "train.sample_tokens=0", "train.dtype=fp32", "train.steps=1000000",
    "train.global_batch_size=4", "parallel.pp=1", "parallel.dp=2", "ckpt.durable_every=5",
)  # fmt: skip
CONFIG = Path(__file__).resolve().parents[1] / "examples" / "tiny.toml"
LIMIT_S = 180.0
AGAIN_LIMIT_S = 15.0
"""All ranks must step again within this time after the loss of a machine."""
AWAY_S = 60.0
"""How long the controller is stopped."""
SETTLE_S = 10.0
"""Before each fault: a spare that has just joined still imports torch."""
NODES = 3
"""Of each run, one of them a spare."""
TEARDOWNS = 10
TIME_LIMIT_MIN = 3
EARLY_S = 15.0
"""How long before the time limit a run must have stopped; Slurm gives notice 45 s before it. At the
limit itself Slurm sends SIGTERM, which stops the run, too."""


class Cases:
    """Each method is one case on a run that steps, and returns what it measured."""

    def __init__(self, machines: Machines, slurm: Slurm, settings: Sequence[str]) -> None:
        self.machines, self.slurm, self._settings = machines, slurm, settings
        self.name = ""

    def all(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and result of each case, in order."""
        self._begin("faults")
        yield "power off a machine that trains", self._power_off(1)
        yield "power off the driver's machine", self._power_off(self._leader())
        yield "reboot of a machine before Slurm notices", self._reboot()
        yield f"no controller for {AWAY_S:.0f} s", self._no_controller()
        yield "spares used up: a further job joins", self._further_jobs()
        self._end("faults")
        yield "the time limit is near", self._time_limit()
        yield "scancel", self._cancel()
        yield f"{TEARDOWNS} starts and stops", self._teardowns()

    # ---- cases --------------------------------------------------------------------------------
    def _power_off(self, node: int) -> dict[str, Any]:
        machine = self.slurm.machine_of(node)
        found = self._measured(machine.kill)
        self._await("a spare again", lambda: "spare" in self._states().values())
        found["spare_again_s"] = round(time.time() - found.pop("at"), 1)
        self.machines.boot(machine.index)
        return found

    def _reboot(self) -> dict[str, Any]:
        index = next(k for k, state in self._states().items() if state == "active")
        machine = self.slurm.machine_of(index)

        def reboot() -> None:
            machine.kill()
            self.machines.boot(machine.index)

        found = self._measured(reboot)
        self._await("it is back", lambda: self._states().get(index) in ("active", "spare"))
        found["spare_again_s"] = round(time.time() - found.pop("at"), 1)
        return found

    def _no_controller(self) -> dict[str, Any]:
        before = self._status()
        self.slurm.stop_controller()
        time.sleep(AWAY_S)
        during = self._status()
        self.slurm.start_controller()
        time.sleep(5.0)
        after = self._status()
        assert before["generation"] == during["generation"] == after["generation"], "a recovery"
        assert before["step"] < during["step"] < after["step"], "it did not train on"
        return {"steps_meanwhile": during["step"] - before["step"]}

    def _further_jobs(self) -> dict[str, Any]:
        """Power off both training machines in turn, and boot neither until the end."""
        lost, took, again = [], [], []
        for _ in range(2):
            index = next(k for k, state in self._states().items() if state == "active")
            lost.append(self.slurm.machine_of(index))
            found = self._measured(lost[-1].kill)
            took.append(found["stepping_s"])
            self._await("a spare again", lambda: "spare" in self._states().values())
            again.append(round(time.time() - found["at"], 1))
        jobs = len(self.slurm.queue())
        for machine in lost:
            self.machines.boot(machine.index)
        return {"jobs": jobs, "stepping_s": max(took), "each_s": took, "spare_again_s": again}

    def _time_limit(self) -> dict[str, Any]:
        self.machines.env["SBATCH_TIMELIMIT"] = str(TIME_LIMIT_MIN)
        began = time.time()
        self._begin("limited")
        del self.machines.env["SBATCH_TIMELIMIT"]
        self._await("its end", lambda: self._phase() == "stopped")
        found = {"time_limit_s": 60.0 * TIME_LIMIT_MIN}
        found["stopped_after_s"] = round(time.time() - began, 1)
        return {**found, **self._left("limited")}

    def _cancel(self) -> dict[str, Any]:
        self._begin("cancelled")
        began = time.time()
        [job] = self.slurm.queue()
        self.machines.head.run(["scancel", f"--name={job.split()[0]}"])
        self._await("its end", lambda: self._phase() == "stopped")
        return {"stopped_after_s": round(time.time() - began, 1), **self._left("cancelled")}

    def _teardowns(self) -> dict[str, Any]:
        took = []
        for number in range(TEARDOWNS):
            self._begin(f"short-{number}")
            began = time.time()
            self._end(f"short-{number}")
            took.append(round(time.time() - began, 1))
        return {"seconds": took}

    # ---- a run --------------------------------------------------------------------------------
    def _begin(self, name: str) -> None:
        self.name = name
        self.machines.run(CONFIG, name, *self._settings, count=NODES)
        self._await("steps", lambda: self._status().get("step", 0) > 6)

    def _end(self, name: str) -> None:
        self.machines.headway("stop", name)
        self._left(name)

    def _left(self, name: str) -> dict[str, Any]:
        """Wait until only the shared folder is left of the run; returns its newest checkpoint,
        which must be of its last step."""
        self.slurm.wait_for_empty_queue(LIMIT_S)
        self._await("an end of all", lambda: not self._remains())
        shared = self._shared(name)
        self._await("checkpoint of the last step", lambda: last_checkpoint(shared) is not None)
        found = last_checkpoint(shared)
        assert found is not None
        return {"checkpoint": found.path.name}

    def _measured(self, strike: Callable[[], None]) -> dict[str, Any]:
        """Seconds from the fault to the first step of all ranks in a later generation."""
        time.sleep(SETTLE_S)
        generation = self._status()["generation"]
        at = time.time()
        strike()
        found: list[float] = []

        def steps_again() -> bool:
            found[:] = self._stepping(generation)
            return bool(found)

        self._await("steps again", steps_again)
        return {"at": at, "stepping_s": round(found[0] - at, 1)}

    def _stepping(self, generation: int) -> list[float]:
        """When each later generation stepped first."""
        query = "SELECT unix_s, fields FROM events WHERE name = 'stepping' ORDER BY id"
        rows = rows_of(self._shared(self.name), query)
        return [unix_s for unix_s, text in rows if json.loads(text)["generation"] > generation]

    def _shared(self, name: str) -> Path:
        [path] = self.machines.shared.glob(f"{name}-*")
        return path

    def _status(self) -> dict[str, Any]:
        return dict(self.machines.status(self.name).get("status") or {})

    def _phase(self) -> str:
        return str(self.machines.status(self.name)["phase"])

    def _states(self) -> dict[int, str]:
        return {int(node): state for node, state in self._status().get("nodes", {}).items()}

    def _leader(self) -> int:
        services = self._status()["services"]
        return next(int(node) for node, names in services.items() if "driver" in names)

    def _remains(self) -> list[str]:
        """Processes and files of runs on machines, beside what these share."""
        up = [node for node in self.machines.bed.nodes if node.is_up]
        return [
            f"{node.name}: {line}"
            for node in up
            for line in [*processes_on(node), *self.machines.files_of_runs(node)]
        ]

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("\n".join([f"{self.name}: no {what}", *self._evidence()]))
            time.sleep(0.1)

    def _evidence(self) -> list[str]:
        """What the run and Slurm say, where a case fails."""
        head = self.machines.head
        asked = (["squeue"], ["squeue", "--steps"], ["sinfo", "-N"])
        logs = self.machines.headway("logs", self.name, "-n", "30", check=False).stdout
        printed = [head.run(words, check=False).stdout for words in asked]
        return [logs, *printed, *self._remains()]


def rows_of(shared: Path, query: str) -> list[tuple[Any, ...]]:
    """Of the journal in a run's shared folder."""
    journal = shared / "control" / "run.sqlite"
    with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as opened:
        return opened.execute(query).fetchall()


def last_checkpoint(shared: Path) -> CheckpointInfo | None:
    """The newest complete checkpoint, if nothing was trained after it."""
    [(step,)] = rows_of(shared, "SELECT MAX(step) FROM metrics")
    found = newest(shared / "checkpoints")
    is_last = found is not None and step is not None and found.step == step + 1
    return found if is_last else None


def processes_on(node: Node) -> list[str]:
    """Those of runs on the node."""
    found = []
    for one in node.processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
            if b"headway" in b" ".join(words):
                found.append(b" ".join(words[:5]).decode())
    return found


def faults_of(found: dict[str, Any]) -> list[str]:
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


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if every case has ended as it should, and soon enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, default=Path("data/stdlib"))
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(argv)
    if reason := Machines.missing() or Slurm.missing():
        print(f"no machines with Slurm here: {reason}", file=sys.stderr)
        return 2
    corpus, rows = options.corpus.resolve(), {}
    with tempfile.TemporaryDirectory(prefix="hw-machines-") as folder:
        visible = [corpus, CONFIG.parent]
        with Machines(Path(folder), count=5, visible=visible, way="slurm") as machines:
            assert machines.slurm is not None
            cases = Cases(machines, machines.slurm, (*SETTINGS, f"data.path={corpus}"))
            for name, found in cases.all():
                rows[name] = found
                print(json.dumps({name: found}), flush=True)
    wrong = [f"{name}: {what}" for name, found in rows.items() for what in faults_of(found)]
    result = {
        "command": "python -m benchmarks.slurm",
        "date": datetime.now(tz=UTC).date().isoformat(),
        "hardware": hardware(),
        "condition": f"each fault {SETTLE_S:g} s or more after the spare has joined",
        "cases": rows,
        "wrong": wrong,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(wrong) or "nothing is wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
