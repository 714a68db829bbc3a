"""A run on emulated nodes of this machine that faults are injected into, as a user injects them."""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from headway.common.errors import DeadlineError
from headway.common.node.arming import disarm, fired
from headway.common.node.process import ProcessId
from headway.common.polling import wait_until
from headway.common.wire.messages.driver import Status
from headway.console.run import Run
from headway.controller.faults import cgroups
from headway.controller.faults import fault_effects as effects
from headway.controller.faults.inside import INSIDE
from headway.testkit.journal import query

from benchmarks.campaign.real import own_cores
from benchmarks.campaign.real.kinds import Injection, agrees
from benchmarks.campaign.real.said import Said
from benchmarks.drill import look
from benchmarks.drill.local import LocalRun
from benchmarks.drill.rig import Rig

CLOSED_LIMIT_S = 120.0
"""Until every verdict on what was injected before is over."""
STARTED_LIMIT_S = 120.0
"""Until what is injected is there."""
NAMED_LIMIT_S = 30.0
"""Until it is named; of a hang, beyond its limit."""
SLOW_LIMIT_S, SLOW_LIMIT_STEPS = 600.0, 60
USUAL_STEPS, MORE_STEPS = 40, 96
"""Completed steps before a rank is slowed down: enough for what is usual; and before it is slowed
down by little, since a monitor learns from so many how much healthy ranks differ."""
QUIET_S = 6.0
"""How long is waited for what should not be said."""
PERIOD_S = 0.12
FROZEN = ("freeze", "silent_node", "returning_node")


class InjectedRun(LocalRun):
    """``current`` is what is injected next, into the ranks of ``now``."""

    current: Injection

    def __init__(self, rig: Rig, run: Run, seed: int) -> None:
        super().__init__(run, seed)
        self._rig = rig
        self._said = Said(run)
        self._step_s = 0.0
        self._slowing: contextlib.ExitStack | None = None
        self._services: list[ProcessId] = []
        """Of what is injected into a service: its process."""
        self._cores = contextlib.ExitStack()
        self._cores.enter_context(own_cores.divided(run))
        self.number = 0

    # ---- the steps of an injection ---------------------------------------------------------------
    def ready(self) -> Status:
        """Once nothing is left of what was injected before, and steps of usual length follow."""
        if not wait_until(lambda: not self._said.open(), CLOSED_LIMIT_S, every_s=0.5):
            raise DeadlineError(f"verdicts are still open: {self._said.open()}")
        status = look.healthy(self.run, 2)
        steps = USUAL_STEPS if self.current.goal == "slow" else 8
        steps = MORE_STEPS if self.current.factor else steps
        return look.healthy(self.run, status.step + steps, limit_s=SLOW_LIMIT_S)

    def strike(self) -> None:
        strike, one = self.now, self.current
        self.number += 1
        self._status = look.healthy(self.run)
        self._node_hit = self._node()
        if one.target == "node":
            strike.ranks = self._ranks(self._node_hit)
        ended = self._pids(strike.ranks) if one.target in ("worker", "node") else set[int]()
        strike.victims = ended
        self._services = self._chosen(self._node_hit) if one.names == "service" else []
        strike.fallen = ended if one.ends else set()
        sql = "SELECT duration_s FROM metrics ORDER BY step DESC LIMIT 16"
        self._step_s = statistics.median(row[0] for row in query(self.run, sql))
        strike.struck_at_s = time.monotonic()
        self._said.begin()
        self._begin()

    def await_steps(self) -> None:
        """Wait for a right verdict, or for as long as one may take; then for a recovery."""
        one = self.current
        if one.says:
            wait_until(self._is_named_or_late, SLOW_LIMIT_S, every_s=0.05)
        else:
            wait_until(lambda: bool(self._said.accusing()), one.seconds + QUIET_S, every_s=0.05)
        if one.ends:
            super().await_steps()

    def undo(self) -> None:
        """End the fault, unless it has a time of its own that belongs to it."""
        has_own_end = self.current.fault in ("silent_node", "returning_node", "locked_journal")
        if not has_own_end:
            self.release()
        super().undo()
        disarm(self._failpoints)

    def finish(self) -> None:
        """Stop the run."""
        self._cores.close()
        self._rig.finish(self.run)

    def release(self) -> None:
        if self._slowing is not None:
            self._slowing.close()
            self._slowing = None
        super().release()

    def row(self) -> dict[str, Any]:
        one = self.current
        row = super().row()  # waits until the run is whole
        said = self.said_so_far()
        return {
            "injection": one.name,
            "number": self.number,
            "target": self._target(),
            "said": said,
            "innocents": self._innocents(row),
            "is_target_ended": self._is_gone(),
            "hang_limit_s": round(self._hang_limit_s, 2),
            "step_s": round(self._step_s, 3),
            "error": "",
            **self._layer(said),
        }

    def said_so_far(self) -> list[dict[str, Any]]:
        """The accusing verdicts since the strike, the first one first."""
        return self._said.rows(self.current, self.now.ranks, self._node_hit, self.now.struck_at_s)

    # ---- what is done ----------------------------------------------------------------------------
    def _begin(self) -> None:
        one, run = self.current, self.run
        rank = next(iter(self.now.ranks), -1)
        if one.factor:
            self._slowing = contextlib.ExitStack()
            self._slowing.enter_context(slowed(self._chosen(self._node_hit), one.factor))
            return
        if one.target == "worker":
            run.inject(one.fault, rank=rank, duration_s=one.seconds)
        else:
            run.inject(one.fault, target=one.target, node=self._node_hit, duration_s=one.seconds)
        if one.fault in INSIDE:
            self._await_point(f"inject-{one.fault}-{rank}-")
        elif one.seconds:
            self._await_holder()

    def _await_point(self, beginning: str) -> None:
        """Until the rank has come to the point of its program, which is when it begins."""
        begun: list[float] = []

        def is_reached() -> bool:
            hits = fired(self._failpoints).items()
            times = [hit.get("at_ns") for key, hit in hits if key.startswith(beginning)]
            begun[:] = [float(at_ns) / 1e9 for at_ns in times if at_ns]
            return bool(begun)

        if not wait_until(is_reached, STARTED_LIMIT_S, every_s=0.01):
            raise DeadlineError(f"{self.now} was not reached")
        self.now.struck_at_s = max(begun)

    def _await_holder(self) -> None:
        """Until the process that holds the fault is there; what it freezes, frozen."""
        if not wait_until(
            lambda: bool(self._rig.holders()) or self._is_gone(), STARTED_LIMIT_S, every_s=0.05
        ):
            raise DeadlineError(f"nobody holds {self.now}: see logs/faults.log")
        self._holder = next(iter(self._rig.holders()), None)
        if self.current.fault in FROZEN:
            wait_until(lambda: any(map(cgroups.is_frozen, cgroups.groups())), 10.0, every_s=0.01)
            self.now.struck_at_s = time.monotonic()

    def _is_gone(self) -> bool:
        found = [*map(ProcessId.of, self.now.victims), *self._services]
        return any(process is None or not process.alive() for process in found)

    def _node(self) -> int:
        """Never the node of the driver, where the monitor would be hit as well."""
        if self.current.names != "node":
            return super()._node()
        nodes = {row.node for row in self._status.ranks} - {look.home_of(self._status)}
        return self._random.choice(sorted(nodes))

    def _is_named_or_late(self) -> bool:
        one, node = self.current, self._node_hit
        if any(agrees(one, said, self.now.ranks, node) for said in self._said.accusing()):
            return True
        if one.goal == "slow":
            return self._said.num_steps > SLOW_LIMIT_STEPS
        limit_s = self._hang_limit_s if one.goal == "hang" else one.seconds
        return time.monotonic() - self.now.struck_at_s > limit_s + NAMED_LIMIT_S

    @property
    def _hang_limit_s(self) -> float:
        health = self.run.config.health
        return max(health.silence_floor_s, health.silence_factor * self._step_s)

    def _target(self) -> str:
        one = self.current
        if one.target == "worker":
            return f"rank {self.now.ranks[0]}"
        return one.target if one.target == "run" else f"{one.target} {self._node_hit}"

    # ---- what it cost ----------------------------------------------------------------------------
    def _innocents(self, row: dict[str, Any]) -> list[str]:
        """Ranks with another process, and nodes with another state, that were not the target."""
        found = [f"rank {rank}" for rank in row["survivors_with_new_pid"]]
        before = {str(node): state for node, state in self.before.nodes.items()}
        changed = [node for node, state in row["nodes"].items() if before.get(node) != state]
        if self.current.target == "node":  # a spare takes over, unless its executor is restarted
            changed = [
                node
                for node in changed
                if node != str(self._node_hit) and before.get(node) != "spare"
            ]
        return found + [f"node {node}" for node in changed]

    def _layer(self, said: list[dict[str, Any]]) -> dict[str, Any]:
        """Of values that are not finite: the tensor, by the rank's own log, and if it is named."""
        if self.current.goal != "nan":
            return {}
        logs = self.run.folder.logs.glob(f"n{self._node_hit}w*.log")
        hits = [
            json.loads(line)["hit"]
            for log in logs
            for line in log.read_text(errors="replace").splitlines()
            if '"injected"' in line and "nan in the gradient of " in line
        ]
        tensor = hits[-1].rpartition(" ")[2] if hits else ""
        right = [row for row in said if row["is_right"]]
        shown = " ".join(text for row in right for text in row["evidence"])
        return {"tensor": tensor, "is_layer_right": bool(tensor) and f" {tensor}," in shown}


@contextlib.contextmanager
def slowed(processes: Sequence[ProcessId], factor: float) -> Iterator[None]:
    """Processes that take ``factor`` times as long as before for whatever they compute."""
    runs_s, is_over = PERIOD_S / factor, threading.Event()
    with effects.slowed(processes, runs_s, PERIOD_S - runs_s) as burst:

        def keep() -> None:
            while not is_over.is_set():
                burst()

        thread = threading.Thread(target=keep)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
