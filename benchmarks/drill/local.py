"""A run on emulated nodes of this machine, struck from outside: signals, crash points, and what
``headway inject`` can break."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from headway.common.errors import DeadlineError, HeadwayError
from headway.common.node.arming import arm, disarm, fired
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.common.polling import wait_until
from headway.common.wire.messages.driver import Status
from headway.common.wire.messages.health import Verdict
from headway.console.analysis.events import load_events, redone_steps
from headway.console.run import Run
from headway.controller.faults import faults
from headway.health.journal import read_verdicts
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.local import LocalEngine
from headway.launch.nodes import attach, bring_up
from headway.testkit.journal import query

from benchmarks.drill import aftermath, look
from benchmarks.drill.catalogue import DAMAGE
from benchmarks.drill.drilled import DrilledRun
from benchmarks.drill.resources import Watch
from benchmarks.drill.rig import HOLDER_IMPORTS_S

FIRE_LIMIT_S = LOST_LIMIT_S = 60.0
HELD_FOR_S = 600
STEPS_BETWEEN = 8
"""Completed steps before a rank is held: enough for a median of step times."""
NOT_ENTERED = re.compile(r"not by ranks? (\d+(?:, \d+)*)")
LEADERS = ("init", "executor", "driver", "monitor")
STAGES = {"generation": "decide_s", "stepping": "first_step_s"} | dict.fromkeys(
    ("worker_lost", "fence"), "detect_s"
)
"""Event of the journal -> what has been reached then."""


class LocalRun(DrilledRun):
    """``seed`` decides where faults hit that name no rank; never on the node of ``witness``, a rank
    that is watched through all of them, if whole nodes are lost."""

    def __init__(self, run: Run, seed: int, witness: int = -1) -> None:
        self.run, self._witness = run, witness
        self.cluster = ClusterFolder(run.cluster_folder)
        self._random = random.Random(seed)
        self._failpoints = NodePaths(run.folder.run_id, 0).failpoints
        self._watch = Watch()
        self._count = 0
        self._holder: ProcessId | None = None
        self._stopped: list[ProcessId] = []
        self._gone: int | None = None
        self._held = ""
        """Key of the crash point that holds a rank."""
        self._known: set[tuple[str, int]] = set()
        """Verdicts that were judged, with their revisions."""

    def ready(self) -> Status:
        """Once it is healthy; beside a ready spare, or with a median of step times, where the fault
        is about that."""
        status, fault = look.healthy(self.run, 2), self.now.fault
        if fault.limit_s and not self._await_status(
            lambda status: "spare" in status.nodes.values() and not status.troubles
        ):
            raise DeadlineError(f"no spare is ready for {self.now}")
        return look.healthy(self.run, status.step + STEPS_BETWEEN) if fault.blames else status

    def strike(self) -> None:
        """Signals and crash points are its own, all others those of ``headway inject``."""
        strike, fault = self.now, self.now.fault
        self._status = look.healthy(self.run)
        self._count += 1
        strike.struck_at_s = time.monotonic()
        strike.victims = self._pids(strike.ranks)
        if fault.kind in ("lose", "evict"):
            self._lose()
        elif fault.kind == "double":
            self._double()
        elif fault.at:
            self._at_point()
        elif fault.kind in ("kill", "stop"):
            self._signal()
        else:
            self._inject()

    def await_steps(self) -> None:
        """What is reported may be older than the strike: healthy is who has a new process for each
        that fell, and steps continue."""
        look.healthy(self.run, self.before.step + 2, fallen=self.now.fallen)

    def undo(self) -> None:
        """Also brings a lost node back."""
        strike = self.now
        if self._holder is not None:
            holder, self._holder = self._holder, None
            if not wait_until(lambda: not holder.alive(), strike.fault.seconds + 30.0):
                raise DeadlineError(f"{strike} does not end")
        if self._stopped:
            time.sleep(max(0.0, strike.struck_at_s + strike.fault.seconds - time.monotonic()))
            self.release()
        if self._held:
            disarm(self._failpoints, self._held)
            self._held = ""
        if self._gone is not None:
            node, self._gone = self._gone, None
            if self.cluster.living(node) is None:
                engine = LocalEngine(self.cluster)
                bring_up(engine, self.cluster, node)
                attach(engine, self.cluster, self.run.path, self.cluster.nodes)

    def release(self) -> None:
        """Resume what is stopped, end what holds a fault."""
        for process in self._stopped:
            process.kill(signal.SIGCONT)
        if self._holder is not None:
            self._holder.kill(signal.SIGTERM)
        self._stopped = []

    # ---- faults -------------------------------------------------------------------------------
    def _at_point(self) -> None:
        """Kill who comes to the crash point, or hold it there."""
        is_held = self.now.fault.kind == "hold"
        key = self._arm(self.now.ranks, f"sleep:{HELD_FOR_S}" if is_held else "kill")
        self._held = key if is_held else ""
        hit = self._wait_fired(key)
        self.now.struck_at_s = hit["at_ns"] / 1e9
        self.now.fallen = self.now.victims or {hit["pid"]}

    def _signal(self) -> None:
        strike, node = self.now, self._node()
        processes = self._chosen(node)
        if strike.fault.loses_node:
            strike.victims = strike.fallen = self._pids(self._ranks(node))
        elif not strike.fault.seconds:
            strike.fallen = {process.pid for process in processes}
        if strike.fault.seconds:  # stopped for a while only
            self._stopped = processes
        for process in processes:
            process.kill(signal.SIGSTOP if strike.fault.kind == "stop" else signal.SIGKILL)

    def _double(self) -> None:
        """Two at once, or the second one while the run recovers from the first."""
        strike, target, [first, *others] = self.now, self.now.fault.target, self.now.ranks
        parts = look.parts_of(self.run, self._status, look.node_of(self._status, first))
        strike.fallen = set(strike.victims)
        armed, also = "", list[ProcessId]()
        if target == "worker":
            armed = self._arm(others)
        elif target == "driver":  # which then has something to write
            self._arm(())
        elif target == "standby":  # nothing warm is left on its node
            also = [parts.services["zygote"], *parts.standbys]
        elif target == "executor":
            also = [parts.services["executor"]]
        for process in also:
            strike.fallen.add(process.pid)
            process.kill()
        self._kill(self._pids([first]) if armed else strike.victims)
        if armed:
            self._wait_fired(armed)

    def _lose(self) -> None:
        strike, node = self.now, self._node()
        strike.ranks = self._ranks(node)
        strike.victims = strike.fallen = self._pids(strike.ranks)
        self._gone = node
        if strike.fault.kind == "evict":
            self._await_status(lambda status: "spare" in status.nodes.values())
            self.run.evict(node)
        else:
            LocalEngine(self.cluster).lose_node(node)

    def _inject(self) -> None:
        strike, fault, node = self.now, self.now.fault, self._node()
        processes, where = self._chosen(node), look.places_of(self.run, node)
        if fault.loses_node:
            strike.victims = self._pids(self._ranks(node))
        if faults.FAULTS[fault.kind].default_s:
            self._holder = faults.hold(fault.kind, processes, where, fault.seconds)
            time.sleep(HOLDER_IMPORTS_S)
        else:
            faults.inject(fault.kind, processes, where, rank=next(iter(strike.ranks), -1))
        if fault.kind in DAMAGE or fault.kind == "spawn_failure":  # now it matters
            strike.fallen = strike.victims
            self._kill(strike.victims)
        elif fault.kind == "debugger":
            strike.victims = set()

    def _kill(self, pids: Collection[int]) -> None:
        for pid in pids:
            if (process := ProcessId.of(pid)) is not None:
                process.kill()

    # ---- where --------------------------------------------------------------------------------
    def _ranks(self, node: int) -> tuple[int, ...]:
        return tuple(row.rank for row in self._status.ranks if row.node == node)

    def _pids(self, ranks: Collection[int]) -> set[int]:
        return {row.pid for row in self._status.ranks if row.rank in ranks}

    def _node(self) -> int:
        """The node of the first rank; else one in use, and of whole nodes not the witness's."""
        status, fault = self._status, self.now.fault
        if self.now.ranks:
            return look.node_of(status, self.now.ranks[0])
        if fault.target in ("driver", "driver_node", "monitor", "leader", "run"):
            return look.home_of(status)
        nodes = {row.node for row in status.ranks}
        if self._witness >= 0 and (fault.target == "node" or fault.loses_node):
            nodes -= {look.node_of(status, self._witness)}
        if fault.limit_s:
            nodes -= {look.home_of(status)}
        return self._random.choice(sorted(nodes))

    def _chosen(self, node: int) -> list[ProcessId]:
        fault, rank = self.now.fault, next(iter(self.now.ranks), -1)
        parts = look.parts_of(self.run, self._status, node)
        if fault.target == "leader":
            return [parts.services[name] for name in LEADERS if name in parts.services]
        if fault.kind == "stop" and fault.loses_node:
            return [*parts.services.values(), *parts.workers.values(), *parts.standbys]
        return faults.chosen(fault.kind, fault.target, rank, parts)

    def _arm(self, ranks: Sequence[int], how: str = "kill") -> str:
        name, where = self.now.fault.at, {"rank": ranks[0]} if ranks else {}
        return arm(self._failpoints, name, how, where, key=f"drill-{self._count}-{name}")

    def _wait_fired(self, key: str) -> dict[str, Any]:
        """Wait for a crash point; returns when it was reached and by whom."""
        # the file of a claim is there before its content
        if not wait_until(
            lambda: bool(fired(self._failpoints).get(key)), FIRE_LIMIT_S, every_s=0.005
        ):
            raise DeadlineError(f"crash point {key} was not reached in {FIRE_LIMIT_S:.0f} s")
        return fired(self._failpoints)[key]

    # ---- what it cost ---------------------------------------------------------------------------
    def row(self) -> dict[str, Any]:
        """Once all nodes are well: who was replaced, and the times of the recovery."""
        before, strike = self.before, self.now
        self._await_status(lambda status: set(status.nodes.values()) <= look.WELL)
        late = STEPS_BETWEEN if strike.fault.blames else 0
        after = look.healthy(self.run, look.healthy(self.run).step + late)
        return {
            "generations": list(range(before.generation + 1, after.generation + 1)),
            "survivors_with_new_pid": look.replaced(before, after, strike.victims),
            "nodes": {str(node): state for node, state in after.nodes.items()},
            "ranks": list(strike.ranks),
            **(self._verdicts(after) if strike.fault.blames else {}),
            **self._recovery_times(strike.struck_at_s, strike.again_at_s),
        }

    def _verdicts(self, after: Status) -> dict[str, Any]:
        """Whom verdicts have named since the last call, and which nodes that has cost; a victim's
        log line of its loss names nobody."""
        found = read_verdicts(self.run.folder.path / "verdicts.jsonl")
        news = [one for one in found if (one.id, one.revision) not in self._known]
        self._known |= {(one.id, one.revision) for one in news}
        accusing = [one for one in news if one.kind not in ("peer_lost", "collective_timeout")]
        silences = [one for one in accusing if one.kind == "silence" and one.rank in self.now.ranks]
        nodes = {one.node for one in news if one.kind == "node_silent"}
        nodes |= {node for node, state in self.before.nodes.items() if after.nodes[node] != state}
        struck_unix_s = time.time() - time.monotonic() + self.now.struck_at_s
        missing = {"missing": _missing(silences)} if self._has_tp() else {}
        return missing | {
            "blamed": sorted({one.rank for one in accusing} - {-1}) if silences else [],
            "blamed_nodes": sorted(nodes),
            "named_s": min((one.unix_s for one in silences), default=0.0) - struck_unix_s,
        }

    def _await_status(self, condition: Callable[[Status], bool]) -> bool:
        return wait_until(lambda: look.reports(self.run, condition), LOST_LIMIT_S, every_s=0.2)

    def _recovery_times(self, struck_at_s: float, until_s: float) -> dict[str, float]:
        """Seconds from the strike to: the fence (detect), the new generation (decide), restored
        state, all ranks' first new step."""
        sql = "SELECT name, monotonic_s FROM events WHERE monotonic_s BETWEEN ? AND ? ORDER BY id"
        times: dict[str, float] = {}
        for name, at_s in query(self.run, sql, (struck_at_s, until_s)):
            key = STAGES.get(name)
            if key is not None and not (key == "detect_s" and key in times):
                times[key] = at_s - struck_at_s
        restores = load_events(self.run.path).filter(action="RESTORE")["end_ns"].drop_nulls()
        late = [at_ns / 1e9 for at_ns in restores if at_ns > struck_at_s * 1e9]
        return times | ({"restore_s": max(late) - struck_at_s} if late else {})

    def _has_tp(self) -> bool:
        """Whether a rank that is held in a layer leaves another one in a collective."""
        return self.run.config.parallel.tp > 1

    # ---- the whole run --------------------------------------------------------------------------
    def sample(self) -> None:
        """Of what each process of the nodes in use holds."""
        status = look.healthy(self.run)
        found = {f"rank {rank}": pid for rank, pid in look.pids_of(status).items()}
        for node in {row.node for row in status.ranks}:
            services = look.parts_of(self.run, status, node).services
            found |= {f"{name} {node}": one.pid for name, one in services.items() if name != "init"}
        self._watch.take(found)

    def settle(self, num_faults: int) -> dict[str, Any]:
        """What is degraded, what was done again, what has grown."""
        launch = self.run.config.launch
        config = {"nodes": launch.nodes + launch.spares, "standbys": launch.standbys}
        seen, degraded = aftermath.settle(self.run, config, num_faults)
        seconds = [row[0] for row in query(self.run, "SELECT duration_s FROM metrics")]
        again = redone_steps(load_events(self.run.folder.path)).to_dicts()
        return {
            "aftermath": seen,
            "degraded": degraded,
            "redone_steps": {str(row["generation"]): row["num_steps"] for row in again},
            **({"witness": f"rank {self._witness}"} if self._witness >= 0 else {}),
            "resources": self._watch.samples,
            "step_p50_s": statistics.median(seconds or [0.0]),
            "step_max_s": max(seconds, default=0.0),
        }

    def end(self) -> str:
        """Its processes have ended, too."""
        with contextlib.suppress(HeadwayError):
            return self.run.wait(timeout_s=1800)
        return "unfinished"


def _missing(verdicts: Sequence[Verdict]) -> list[int]:
    """Who had not entered the collective that others wait in, as the verdicts show it first."""
    rows = [row for verdict in verdicts for row in verdict.evidence if row.name == "collective"]
    found = NOT_ENTERED.search(rows[0].value) if rows else None
    return [int(rank) for rank in found[1].split(", ")] if found else []
