"""What the scripted drills share: a rig with one run, its state before the fault, and a report."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from headway.common.node.process import ProcessId
from headway.common.wire.messages.driver import RankStatus, Status
from headway.console.run import Run
from headway.controller.faults import faults

from benchmarks.drill import look
from benchmarks.drill.judge import Report
from benchmarks.drill.rig import Rig


class Scene:
    """One drill. ``faulty`` is False in a control, which does everything but the fault;
    ``limit_s`` is how long the run may take to step again."""

    run: Run
    before: Status
    begun_s: float

    def __init__(self, rig: Rig, seed: int, *, faulty: bool, limit_s: float) -> None:
        self.rig, self.rng = rig, random.Random(seed)
        self.faulty, self.limit_s = faulty, limit_s
        self.recovered_s = 0.0

    def launch(self, *overrides: str, beyond: int = 10, more: int = 1, **how: int) -> None:
        """Start the run and wait for a step after ``beyond``, up to ``more`` later by chance."""
        self.run = self.rig.launch("drill", *overrides, **how)
        self.before = look.healthy(self.run, beyond + self.rng.randrange(more))
        self.begun_s = time.monotonic()

    # ---- who is who ---------------------------------------------------------------------------
    @property
    def home(self) -> int:
        """The node of the driver."""
        return look.home_of(self.before)

    @property
    def away(self) -> RankStatus:
        """A rank of another node."""
        return next(row for row in self.before.ranks if row.node != self.home)

    def parts(self, node: int) -> faults.Parts:
        """The processes of a node as it was before."""
        return look.parts_of(self.run, self.before, node)

    def worker(self, rank: int) -> ProcessId:
        """The process of a rank as it was before."""
        return self.parts(look.node_of(self.before, rank)).workers[rank]

    # ---- what happens -------------------------------------------------------------------------
    def last(self, fault: str, processes: Sequence[ProcessId], seconds: float) -> None:
        """Let a fault last from its begin to its end; a control waits as long."""
        if self.faulty:
            holder = self.rig.hold(self.run, fault, processes, seconds)
            look.seconds_until(lambda: not holder.alive(), seconds + 20.0)
        else:
            time.sleep(seconds)

    def recover(self, accept: Callable[[Status], bool] = lambda _: True, more: int = 3) -> None:
        """Wait until all ranks run in an accepted status and ``more`` steps follow."""
        self.recovered_s = look.seconds_to_steps(self.run, self.limit_s, accept, more)

    def end(self, **more: Any) -> Report:
        """Look at the run once more, stop it, and report."""
        before, after, generations = (
            self.before,
            look.status_of(self.run),
            look.generations_of(self.run),
        )
        return {
            "recovered_s": self.recovered_s,
            "epoch_before": before.epoch,
            "epoch_after": after.epoch if after is not None else 0,
            "generation_before": before.generation,
            "generation_after": after.generation if after is not None else None,
            "pids_before": look.pids_of(before),
            "pids_after": look.pids_of(after) if after is not None else {},
            "nodes": after.nodes if after is not None else {-1: "no status"},
            "events": look.events_of(self.run, self.begun_s),
            "source": generations[-1].get("source") if generations else None,
            "faulty": self.faulty,
            **more,
            "left": self.rig.finish(self.run),
            "metrics": look.measured_steps(self.run),
        }
