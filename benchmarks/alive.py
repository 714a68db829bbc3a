"""Faults of a plan that are not signals: who hangs, what is full, locked or damaged, and where."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterable

from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.common.wire.messages.driver import Status
from headway.console.run import Run
from headway.controller.faults import faults
from headway.launch.cluster import ClusterFolder

from benchmarks.drills.place import members
from benchmarks.faults import DAMAGE, Fault

HOLDER_IMPORTS_S = 0.7


class Places:
    """Where in a run a fault hits; ``rng`` decides where it names no place."""

    def __init__(self, run: Run, rng: random.Random, witness: int) -> None:
        self.run = run
        self.cluster = ClusterFolder(run.cluster_folder)
        self._random, self._witness = rng, witness

    def node_of(self, fault: Fault, status: Status) -> int:
        """The node of the fault's first rank;
        else one in use, and of whole nodes not the witness's."""
        home = {row.rank: row.node for row in status.ranks}
        if fault.ranks:
            return home[fault.ranks[0]]
        if fault.target in ("driver", "monitor", "leader", "run"):
            return next(n for n, services in status.services.items() if "driver" in services)
        is_spared = fault.target == "node" or fault.may_lose_its_node
        nodes = set(home.values()) - ({home[self._witness]} if is_spared else set())
        return self._random.choice(sorted(nodes))

    def parts(self, status: Status, node: int) -> faults.Parts:
        """The processes of a node."""
        services = {name: ProcessId.of(pid) for name, pid in status.services[node].items()}
        address = self.cluster.address(node)
        services["executor"] = address.process if address is not None else None
        services["init"] = self.cluster.init(node)
        workers = {r.rank: ProcessId.of(r.pid) for r in status.ranks if r.node == node}
        standbys = self.forked(status, node) - {r.pid for r in status.ranks}
        return faults.Parts(
            {name: found for name, found in services.items() if found is not None},
            {rank: found for rank, found in workers.items() if found is not None},
            [found for pid in standbys if (found := ProcessId.of(pid)) is not None],
        )

    def leaders(self, status: Status) -> list[ProcessId]:
        """Init, executor, driver and monitor of the driver's node."""
        home = self.node_of(Fault("stop", "leader"), status)
        services = self.parts(status, home).services
        return [
            services[name] for name in ("init", "executor", "driver", "monitor") if name in services
        ]

    def forked(self, status: Status, node: int) -> set[int]:
        """Every worker of a node, standbys too: they have the environment of their zygote."""
        zygote = status.services[node].get("zygote", 0)
        rows = members(self.run)
        return {p.pid for p, role, home in rows if role == "zygote" and home == node} - {zygote}


def strike_alive(places: Places, fault: Fault, status: Status) -> ProcessId | None:
    """Carry it out; returns the process that holds a fault which lasts."""
    node, run = places.node_of(fault, status), places.run
    rank = fault.ranks[0] if fault.ranks else -1
    if fault.target == "leader":
        processes = places.leaders(status)
    else:
        parts = places.parts(status, node)
        processes = faults.chosen(fault.kind, fault.target, rank, parts)
    hit = fault.ranks
    if fault.may_lose_its_node:
        hit = tuple(row.rank for row in status.ranks if row.node == node)
    victims = {row.pid for row in status.ranks if row.rank in hit}
    shm = NodePaths(run.folder.run_id, node).shm_dir
    where, holder = faults.Places(run.path, shm, places.cluster.path), None
    if faults.FAULTS[fault.kind].default_s:
        holder = faults.hold(fault.kind, processes, where, fault.seconds)
        time.sleep(HOLDER_IMPORTS_S)
    else:
        faults.inject(fault.kind, processes, where, rank=rank)
    if fault.kind != "debugger":
        fault.victims = victims
    if fault.kind in DAMAGE or fault.kind == "spawn_failure":  # now it matters
        fault.fallen = victims
        signal_all(victims, signal.SIGKILL)
    return holder


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each of these processes that lives."""
    for pid in pids:
        signal_one(pid, number)


def signal_one(pid: int, number: int) -> None:
    """Send a signal to the process that has this pid now, if any."""
    process = ProcessId.of(pid)
    if process is not None:
        process.kill(number)
