"""Carries the faults of a plan out on a live run, from outside:
signals, crash points, and what lasts."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable

from headway.common.errors import DeadlineError, HeadwayError
from headway.common.node.failpoints import arm, fired
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.common.polling import wait_until
from headway.common.wire.messages.driver import Status
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.local import LocalEngine
from headway.launch.nodes import attach, bring_up

from benchmarks.alive import Places, signal_all, signal_one, strike_alive
from benchmarks.faults import SIGNALS, Fault, healthy, witness

FIRE_LIMIT_S = 60.0
LOST_LIMIT_S = 60.0
STOPPED_LEADER_S = 8.0
"""Shorter than ``node_lost_s``, so that the leader's node keeps its ranks."""


class Striker:
    """Made for one run; ``seed`` decides where faults hit that name no place."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self.cluster = ClusterFolder(run.cluster_folder)
        self._random = random.Random(seed)
        self._witness = witness(seed, run.config.parallel.world_size)
        self._failpoints = NodePaths(run.folder.run_id, 0).failpoints
        self._places = Places(run, self._random, self._witness)
        self._count = 0
        self._holder: ProcessId | None = None
        self._stopped: list[ProcessId] = []
        self._gone: int | None = None

    def strike(self, fault: Fault) -> None:
        """Break it; returns once it is broken.
        ``victims``, ``fallen``, ``struck_at_s`` (monotonic) are filled in."""
        status = healthy(self.run)
        self._count += 1
        actions: dict[str, Callable[[Fault, Status], None]] = {
            "worker": self._worker,
            "workers": self._workers,
            "standby": self._standby,
            "node": self._node,
            "executor": self._executor,
            "init": self._init,
            "driver": self._driver,
            "leader": self._leader,
        }
        fault.struck_at_s = time.monotonic()
        if fault.kind in SIGNALS:
            actions.get(fault.target, self._service)(fault, status)
        else:
            self._holder = strike_alive(self._places, fault, status)

    def undo(self, fault: Fault) -> None:
        """Wait until a fault that lasts is over, and bring a lost node back."""
        if self._holder is not None:
            holder, self._holder = self._holder, None
            if not wait_until(lambda: not holder.alive(), fault.seconds + 30.0):
                raise DeadlineError(f"{fault} does not end")
        if self._stopped:
            time.sleep(max(0.0, fault.struck_at_s + STOPPED_LEADER_S - time.monotonic()))
            for process in self._stopped:
                process.kill(signal.SIGCONT)
            self._stopped = []
        if self._gone is not None:
            node, self._gone = self._gone, None
            if self.cluster.living(node) is None:
                engine = LocalEngine(self.cluster)
                bring_up(engine, self.cluster, node)
                attach(engine, self.cluster, self.run.path, self.cluster.nodes)

    def release(self) -> None:
        """End what lasts, whatever has happened."""
        for process in [*self._stopped, *([self._holder] if self._holder else [])]:
            process.kill(signal.SIGTERM if process == self._holder else signal.SIGCONT)

    # ---- signals --------------------------------------------------------------------------------
    def _worker(self, fault: Fault, status: Status) -> None:
        pids = {r.rank: r.pid for r in status.ranks}
        fault.victims = {pids[rank] for rank in fault.ranks}
        fault.fallen |= fault.victims
        if fault.kind == "double":  # the second one falls while the run recovers from the first
            key = self._arm(fault.failpoint, rank=fault.ranks[1])
            signal_one(pids[fault.ranks[0]], signal.SIGKILL)
            self._wait_fired(key)
        elif fault.failpoint:
            self._wait_fired(self._arm(fault.failpoint, rank=fault.ranks[0]), fault)
        else:
            signal_one(
                pids[fault.ranks[0]], signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL
            )

    def _workers(self, fault: Fault, status: Status) -> None:
        fault.victims = {r.pid for r in status.ranks if r.rank in fault.ranks}
        fault.fallen |= fault.victims
        signal_all(fault.victims, signal.SIGKILL)

    def _standby(self, fault: Fault, status: Status) -> None:
        """A worker with every standby and the zygote of its node: nothing warm is left there."""
        home = next(r.node for r in status.ranks if r.rank == fault.ranks[0])
        fault.victims = {r.pid for r in status.ranks if r.rank == fault.ranks[0]}
        zygote = status.services[home]["zygote"]
        fault.fallen = {zygote, *fault.victims}
        standbys = self._places.forked(status, home) - {r.pid for r in status.ranks}
        signal_one(zygote, signal.SIGKILL)
        signal_all([*standbys, *fault.victims], signal.SIGKILL)

    def _executor(self, fault: Fault, status: Status) -> None:
        nodes = sorted({r.node for r in status.ranks})
        if fault.ranks:
            fault.victims = {r.pid for r in status.ranks if r.rank == fault.ranks[0]}
            nodes = [next(r.node for r in status.ranks if r.rank == fault.ranks[0])]
        address = self.cluster.address(self._random.choice(nodes))
        assert address is not None
        fault.fallen = {address.process.pid, *fault.victims}
        address.process.kill()
        signal_all(fault.victims, signal.SIGKILL)

    def _init(self, fault: Fault, status: Status) -> None:
        init = self.cluster.init(self._random.choice(sorted({r.node for r in status.ranks})))
        assert init is not None
        fault.fallen = {init.pid}
        init.kill()

    def _driver(self, fault: Fault, status: Status) -> None:
        if fault.failpoint:  # armed, then given something to write
            self._arm(fault.failpoint)
            fault.victims = {r.pid for r in status.ranks if r.rank in fault.ranks}
            fault.fallen |= fault.victims
            signal_all(fault.victims, signal.SIGKILL)
        else:
            self._service(fault, status)

    def _leader(self, _fault: Fault, status: Status) -> None:
        """Init, executor, driver and monitor of the driver's node stop; ``undo`` resumes them."""
        self._stopped = self._places.leaders(status)
        for process in self._stopped:
            process.kill(signal.SIGSTOP)

    def _service(self, fault: Fault, status: Status) -> None:
        used = {r.node for r in status.ranks}
        nodes = [
            n
            for n, services in status.services.items()
            if fault.target in services and (n in used or fault.target in ("driver", "monitor"))
        ]
        pid = status.services[self._random.choice(nodes)][fault.target]
        if fault.failpoint:
            pid = self._wait_fired(self._arm(fault.failpoint), fault)
        else:
            signal_one(pid, signal.SIGKILL)
        fault.fallen = {pid}

    def _node(self, fault: Fault, status: Status) -> None:
        node = self._places.node_of(fault, status)
        fault.victims = {r.pid for r in status.ranks if r.node == node}
        fault.fallen |= fault.victims
        fault.ranks = tuple(r.rank for r in status.ranks if r.node == node)
        self._gone = node
        if fault.kind == "evict":
            wait_until(lambda: "spare" in self.run.status().nodes.values(), LOST_LIMIT_S)
            self.run.evict(node)
        else:
            LocalEngine(self.cluster).lose_node(node)

    # ---- helpers --------------------------------------------------------------------------------
    def _arm(self, name: str, **where: int) -> str:
        return arm(self._failpoints, name, "kill", where, key=f"drill-{self._count}-{name}")

    def _wait_fired(self, key: str, fault: Fault | None = None) -> int:
        """Wait for a crash point; returns the pid of who reached it."""
        if not wait_until(lambda: key in fired(self._failpoints), FIRE_LIMIT_S, every_s=0.005):
            raise DeadlineError(f"crash point {key} was not reached in {FIRE_LIMIT_S:.0f} s")
        hit = fired(self._failpoints)[key]
        if fault is not None and "at_ns" in hit:
            fault.struck_at_s = int(hit["at_ns"]) / 1e9
        return int(hit.get("pid", 0))


def nodes_are_well(run: Run) -> bool:
    """Whether every node is active or a spare."""
    with contextlib.suppress(HeadwayError):
        return set(run.status(timeout_s=2.0).nodes.values()) <= {"active", "spare"}
    return False
