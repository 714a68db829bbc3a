"""Sides of a comparison: groups of worker processes that take turns, one side at a time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.train import zygote
from benchmarks.train.shapes import Shape
from benchmarks.train.zygote import Forked

ROOT = Path(__file__).resolve().parents[2]
ANSWER_LIMIT_S = 400.0
"""A side that has not answered by then has failed; the longest answers contain a compilation."""


OF_JOB = ("run", "world", "threads", "shape", "options")
"""What a process's ``Job`` has of its side's ``Spec``."""
Process = subprocess.Popen[str] | Forked


class SideFailed(Exception):
    """A process of a side ended, raised, or did not answer."""


@dataclass(frozen=True)
class Spec:
    """One variant of one side: what its ``world`` processes run, with how many threads each."""

    name: str
    run: str
    shape: Mapping[str, Any]
    world: int = 1
    threads: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable


def specs(
    name: str,
    run: str,
    shape: Shape,
    micros: Sequence[int],
    *,
    world: int = 1,
    threads: int = 1,
    python: str = sys.executable,
    **options: Any,
) -> list[Spec]:
    """One for each size of a micro-batch."""
    how = {micro: {"micro": micro, **options} for micro in micros}
    facts = (run, shape.to_dict(), world, threads)
    return [Spec(f"{name} micro={micro}", *facts, how[micro], python) for micro in micros]


@dataclass(frozen=True)
class Turn:
    """Some consecutive steps of one side, over all its processes."""

    seconds: float
    """From the first process's start to the last one's end."""
    steps: int
    losses: list[float]
    """Of a process that has them; one per step."""
    peak_kib: list[int]
    """Highest resident memory so far, by rank."""
    cpu_s: float
    facts: list[dict[str, Any]]
    """What each process has to say besides, by rank."""

    @property
    def step_s(self) -> float:
        """Mean seconds of one step."""
        return self.seconds / self.steps


class Team:
    """The processes of one side. Close it; ``team`` does."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._folder = tempfile.TemporaryDirectory(prefix="bench-train-")
        self._log = (Path(self._folder.name) / "stderr").open("w+")
        self._processes = [self._start(rank) for rank in range(spec.world)]
        try:
            self.resident_kib = [self._read(process)["resident_kib"] for process in self._processes]
        except BaseException:
            self.close()
            raise

    def turn(self, steps: int, *, reset_peak: bool = False) -> Turn:
        """Let the side do ``steps`` steps.

        Raises:
            SideFailed: a process ended or raised.
        """
        order = json.dumps({"steps": steps, "reset_peak": reset_peak}) + "\n"
        for process in self._processes:
            self._write(process, order)
        reports = [self._read(process) for process in self._processes]
        ends = [max(times) for times in zip(*(r["ends_s"] for r in reports), strict=True)]
        began_s = min(report["began_s"] for report in reports)
        losses = next((r["losses"] for r in reports if None not in r["losses"]), [])
        return Turn(
            seconds=ends[-1] - began_s,
            steps=steps,
            losses=losses,
            peak_kib=[report["peak_kib"] for report in reports],
            cpu_s=sum(report["cpu_s"] for report in reports),
            facts=[report["facts"] for report in reports],
        )

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
        self._log.close()
        self._folder.cleanup()

    def _start(self, rank: int) -> Process:
        spec = self.spec
        process = Forked(self._log) if zygote.is_active else self._fresh()
        common = {name: getattr(spec, name) for name in OF_JOB}
        job = {**common, "rank": rank, "folder": self._folder.name}
        self._write(process, json.dumps(job) + "\n")
        return process

    def _fresh(self) -> Process:
        spec, path = self.spec, [str(ROOT), os.environ.get("PYTHONPATH", "")]
        return subprocess.Popen(
            [spec.python, "-m", "benchmarks.train.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=dict(
                os.environ,
                OMP_NUM_THREADS=str(spec.threads),
                PYTHONPATH=os.pathsep.join(filter(None, path)),
                GLOO_SOCKET_IFNAME="lo",
                # several processes compile at the same time: no pool of compilers for each
                TORCHINDUCTOR_COMPILE_THREADS=str(2 if spec.world == 1 else 1),
            ),
        )

    def _write(self, process: Process, text: str) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(text)
            process.stdin.flush()
        except OSError:
            raise self._failure("ended") from None

    def _read(self, process: Process) -> dict[str, Any]:
        assert process.stdout is not None
        deadline_s = time.monotonic() + ANSWER_LIMIT_S
        while not select.select([process.stdout], [], [], 0.2)[0]:
            if time.monotonic() > deadline_s:
                raise self._failure(f"gave no answer within {ANSWER_LIMIT_S:g} s")
            self._check_others(process)
        line = process.stdout.readline()
        if not line:
            raise self._failure("ended")
        report: dict[str, Any] = json.loads(line)
        if "error" in report:
            raise self._failure(report["error"])
        return report

    def _check_others(self, waiting_for: Process) -> None:
        """A process that has ended leaves the others of its side waiting for it."""
        for process in self._processes if hasattr(self, "_processes") else ():
            if process is not waiting_for and process.poll() is not None:
                assert process.stdout is not None
                last = process.stdout.read().splitlines()
                error = json.loads(last[-1]).get("error", "") if last else ""
                raise self._failure(error or "ended")

    def _failure(self, why: str) -> SideFailed:
        self._log.flush()
        self._log.seek(0)
        tail = self._log.read().strip().splitlines()[-25:]
        if os.environ.get("BENCH_TRAIN_LOG"):
            print("\n".join(tail), file=sys.stderr)
        last = "" if why != "ended" or not tail else f": {tail[-1][:300]}"
        return SideFailed(f"{why}{last}")


def team(spec: Spec) -> contextlib.closing[Team]:
    """A side for a with block."""
    return contextlib.closing(Team(spec))
