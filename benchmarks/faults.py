"""The faults of a drill: what is broken, how, and which processes may end by it. A plan is a function of its seed."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from headway.common.errors import DeadlineError
from headway.common.node.failpoints import arm, fired
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.common.wire.messages.driver import Status
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.launch.local import LocalEngine

NODE_SERVICES = ("dataloader", "ckpt_store", "agent", "zygote")
SERVICES = (*NODE_SERVICES, "monitor", "driver")
FIRE_LIMIT_S = 60.0


@dataclass
class Fault:
    """One planned fault. ``failpoint`` is empty for a plain signal at a random moment."""

    kind: str
    target: str
    failpoint: str = ""
    ranks: tuple[int, ...] = ()
    struck_at_s: float = 0.0
    victims: set[int] = field(default_factory=set)
    """Pids of workers that this fault ends."""
    fallen: set[int] = field(default_factory=set)
    """Pids of services and executors that this fault ends."""

    def __str__(self) -> str:
        where = f" at {self.failpoint}" if self.failpoint else ""
        return f"{self.kind} {self.target}{f' {list(self.ranks)}' if self.ranks else ''}{where}"


def witness(seed: int, world: int) -> int:
    """The one rank that no fault of a plan strikes, so that its process can be watched through all of them."""
    return seed % world


def plan(seed: int, count: int, world: int) -> list[Fault]:
    """``count`` faults, at least half of them at named crash points; the loss of a node comes last."""
    rng = random.Random(seed)
    others = [rank for rank in range(world) if rank != witness(seed, world)]
    rank = lambda: rng.choice(others)  # noqa: E731 - three words, used eight times below
    at_points = [
        Fault("kill", "worker", "snapshot.mid_seal", (rank(),)),
        Fault("kill", "worker", "snapshot.before_seal", (rank(),)),
        Fault("kill", "worker", "worker.mid_optimizer", (rank(),)),
        Fault("kill", "ckpt_store", "store.mid_flush"),
        Fault("kill", "ckpt_store", "store.mid_manifest"),
        Fault("double", "worker", "worker.mid_rendezvous", tuple(rng.sample(others, 2))),
        Fault("double", "worker", "snapshot.mid_restore", tuple(rng.sample(others, 2))),
        Fault("double", "driver", "journal.mid_write", (rank(),)),
    ]
    plain = [
        Fault("kill", "worker", ranks=(rank(),)),
        Fault("stop", "worker", ranks=(rank(),)),
        Fault("kill", "executor"),
        *(Fault("kill", service) for service in SERVICES),
        Fault("double", "workers", ranks=tuple(rng.sample(others, 2))),
        Fault("double", "standby", ranks=(rank(),)),
        Fault("double", "executor", ranks=(rank(),)),
    ]
    # Different seeds start at different places of both lists, so that a few runs together see every kind.
    half = (count + 1) // 2
    start = seed * half
    chosen = [at_points[(start + i) % len(at_points)] for i in range(half)]
    start = seed * (count - half - 1)
    chosen += [plain[(start + i) % len(plain)] for i in range(count - half - 1)]
    rng.shuffle(chosen)
    return [*chosen, Fault("lose", "node")]


class Striker:
    """Carries faults out on a live run, from outside, by signals and armed crash points."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self.cluster = ClusterFolder(run.cluster_folder)
        self._random = random.Random(seed)
        self._witness = witness(seed, run.config.parallel.world_size)
        self._failpoints = NodePaths(run.folder.run_id, 0).failpoints
        self._count = 0

    def strike(self, fault: Fault) -> None:
        """Break it; returns once it is broken. ``victims`` and ``struck_at_s`` (monotonic) are filled in."""
        status = healthy(self.run)
        self._count += 1
        actions: dict[str, Callable[[Fault, Status], None]] = {
            "worker": self._worker,
            "workers": self._workers,
            "standby": self._standby,
            "node": self._node,
            "executor": self._executor,
            "driver": self._driver,
        }
        fault.struck_at_s = time.monotonic()
        actions.get(fault.target, self._service)(fault, status)

    # ---- kinds ---------------------------------------------------------------------------------
    def _worker(self, fault: Fault, status: Status) -> None:
        pids = {r.rank: r.pid for r in status.ranks}
        fault.victims = {pids[rank] for rank in fault.ranks}
        if fault.kind == "double":  # the second one falls while the run recovers from the first
            key = self._arm(fault.failpoint, rank=fault.ranks[1])
            _signal(pids[fault.ranks[0]], signal.SIGKILL)
            self._wait_fired(key)
        elif fault.failpoint:
            self._wait_fired(self._arm(fault.failpoint, rank=fault.ranks[0]), fault)
        else:
            _signal(
                pids[fault.ranks[0]], signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL
            )

    def _workers(self, fault: Fault, status: Status) -> None:
        fault.victims = {r.pid for r in status.ranks if r.rank in fault.ranks}
        for pid in fault.victims:
            _signal(pid, signal.SIGKILL)

    def _standby(self, fault: Fault, status: Status) -> None:
        """A worker with every standby and the zygote of its node: nothing warm is left there."""
        home = next(r.node for r in status.ranks if r.rank == fault.ranks[0])
        fault.victims = {r.pid for r in status.ranks if r.rank == fault.ranks[0]}
        fault.fallen = {status.services[home]["zygote"]}
        _signal(status.services[home]["zygote"], signal.SIGKILL)
        taken = {r.pid for r in status.ranks}
        for pid in self._standbys(home) - taken:
            _signal(pid, signal.SIGKILL)
        for pid in fault.victims:
            _signal(pid, signal.SIGKILL)

    def _executor(self, fault: Fault, status: Status) -> None:
        nodes = sorted({r.node for r in status.ranks})
        if fault.ranks:
            fault.victims = {r.pid for r in status.ranks if r.rank == fault.ranks[0]}
            nodes = [next(r.node for r in status.ranks if r.rank == fault.ranks[0])]
        address = self.cluster.address(self._random.choice(nodes))
        assert address is not None
        fault.fallen = {address.process.pid}
        address.process.kill()
        for pid in fault.victims:
            _signal(pid, signal.SIGKILL)

    def _driver(self, fault: Fault, status: Status) -> None:
        if fault.failpoint:  # armed, then given something to write
            self._arm(fault.failpoint)
            fault.victims = {r.pid for r in status.ranks if r.rank in fault.ranks}
            for pid in fault.victims:
                _signal(pid, signal.SIGKILL)
        else:
            self._service(fault, status)

    def _service(self, fault: Fault, status: Status) -> None:
        nodes = [
            n
            for n, services in status.services.items()
            if fault.target in services
            and (n in {r.node for r in status.ranks} or fault.target == "driver")
        ]
        pid = status.services[self._random.choice(nodes)][fault.target]
        if fault.failpoint:
            pid = self._wait_fired(self._arm(fault.failpoint), fault)
        else:
            _signal(pid, signal.SIGKILL)
        fault.fallen = {pid}

    def _node(self, fault: Fault, status: Status) -> None:
        spared = next(r.node for r in status.ranks if r.rank == self._witness)
        node = self._random.choice(sorted({r.node for r in status.ranks} - {spared}))
        fault.victims = {r.pid for r in status.ranks if r.node == node}
        fault.ranks = tuple(r.rank for r in status.ranks if r.node == node)
        LocalEngine(self.cluster).lose_node(node)

    # ---- helpers -------------------------------------------------------------------------------
    def _arm(self, name: str, **where: int) -> str:
        return arm(self._failpoints, name, "kill", where, key=f"drill-{self._count}-{name}")

    def _wait_fired(self, key: str, fault: Fault | None = None) -> int:
        """Wait for a crash point; returns the pid of who reached it."""
        deadline = time.monotonic() + FIRE_LIMIT_S
        while key not in (hits := fired(self._failpoints)):
            if time.monotonic() > deadline:
                raise DeadlineError(f"crash point {key} was not reached in {FIRE_LIMIT_S:.0f} s")
            time.sleep(0.005)
        if fault is not None and "at_ns" in hits[key]:
            fault.struck_at_s = int(hits[key]["at_ns"]) / 1e9
        return int(hits[key].get("pid", 0))

    def _standbys(self, node: int) -> set[int]:
        data = json.loads(
            (NodePaths(self.run.folder.run_id, node).sock_dir / "workers.json").read_text()
        )
        return {pid for pid, _ in data["workers"].values()}


def healthy(
    run: Run, *, beyond_step: int = -1, fallen: Collection[int] = (), limit_s: float = 120.0
) -> Status:
    """Wait until every rank runs, every node in use has its services, and ``beyond_step`` is passed.

    ``fallen`` are pids of workers, services and executors that must have been replaced by then.

    Raises:
        DeadlineError: not within ``limit_s``; the last status is in the message.
    """
    deadline = time.monotonic() + limit_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            status = run.status(timeout_s=2.0)
        except DeadlineError as error:
            last = error
            continue
        last = status
        used = {r.node for r in status.ranks}
        serving = {number: status.services.get(number, {}) for number in used}
        if (
            status.phase == "running"
            and all(set(NODE_SERVICES) <= set(services) for services in serving.values())
            and not {pid for services in status.services.values() for pid in services.values()}
            & set(fallen)
            and not _executors(run, used) & {*fallen, 0}
            and status.step > beyond_step
            and all(r.status == "running" and r.pid not in fallen for r in status.ranks)
        ):
            return status
        if status.phase in ("finished", "failed", "stopped"):
            break
        time.sleep(0.02)
    raise DeadlineError(f"run {run.name} is not healthy again: {last}")


def _executors(run: Run, nodes: Collection[int]) -> set[int]:
    """Pids of the nodes' executors; 0 stands for one that does not live."""
    folder = ClusterFolder(run.cluster_folder)
    addresses = [folder.address(node) for node in nodes]
    return {
        address.process.pid if address and address.process.alive() else 0 for address in addresses
    }


def _signal(pid: int, number: int) -> None:
    process = ProcessId.of(pid)
    if process is not None:
        process.kill(number)
