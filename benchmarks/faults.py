"""The faults of a drill and a plan of them, which is a function of its seed;
and when a run is healthy again."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from headway.common.errors import DeadlineError
from headway.common.wire.messages.driver import Status
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder

NODE_SERVICES = ("dataloader", "ckpt_store", "agent", "zygote")
SERVICES = (*NODE_SERVICES, "monitor", "driver")
SIGNALS = frozenset({"kill", "stop", "double", "lose", "evict"})
"""Kinds that end or stop processes by a signal;
all others leave them alive, or break something else."""
DAMAGE = frozenset({"damaged_arena_header", "flipped_snapshot_bit"})
LOSSES = frozenset({"lose", "evict", "returning_node"})
"""Kinds that cost a run a node; it comes back after each."""
NOT_SIGNALS_SHARE = 0.45
WHOLE_WORLD = frozenset({"full_disk", "clock_step"})
"""Kinds that need a run on a disk of its own, or with a clock of its own."""


@dataclass
class Fault:
    """One planned fault. ``failpoint`` is empty for a plain signal at a random moment."""

    kind: str
    target: str
    failpoint: str = ""
    ranks: tuple[int, ...] = ()
    seconds: float = 0.0
    """How long a fault lasts that ends by itself."""
    struck_at_s: float = 0.0
    victims: set[int] = field(default_factory=set)
    """Pids of workers that this fault may end."""
    fallen: set[int] = field(default_factory=set)
    """Pids of workers, services, executors and inits that this fault ends for certain."""

    def __str__(self) -> str:
        where = f" at {self.failpoint}" if self.failpoint else ""
        long = f" for {self.seconds:g} s" if self.seconds else ""
        return (
            f"{self.kind} {self.target}{f' {list(self.ranks)}' if self.ranks else ''}{where}{long}"
        )

    @property
    def goes_back(self) -> bool:
        """Whether more than the step under way may be done again:
        the snapshots in memory are lost."""
        return self.kind in LOSSES | DAMAGE or self.target == "node" or self.may_lose_its_node

    @property
    def may_lose_its_node(self) -> bool:
        """Whether a spare may take over meanwhile:
        the node is silent for longer than ``node_lost_s``."""
        return self.kind == "returning_node" or (self.kind, self.target) == ("freeze", "executor")

    @property
    def spares_the_generation(self) -> bool:
        """Whether no generation may begin by it: no rank is hit, and no node silent for long."""
        if self.ranks or self.kind in LOSSES | DAMAGE or self.target in ("node", "leader"):
            return self.kind in ("debugger", "silent_node")
        return not self.may_lose_its_node


def witness(seed: int, world: int) -> int:
    """The one rank that no fault of a plan strikes,
    so that its process can be watched through all of them."""
    return seed % world


def plan(
    seed: int, count: int, world: int, *, without: Collection[str] = frozenset()
) -> list[Fault]:
    """``count`` faults, more than 40 % of them not signals, and one of ``LOSSES`` at least.

    Args:
        seed: plans of neighbouring seeds together have every kind.
        count: 2 or more.
        world: number of ranks.
        without: kinds that cannot be done here.
    """
    rng = random.Random(seed)
    others = [rank for rank in range(world) if rank != witness(seed, world)]
    at_points, plain, alive, losses = (
        [fault for fault in faults if fault.kind not in without] for faults in _all(rng, others)
    )
    num_alive = math.ceil(NOT_SIGNALS_SHARE * count)
    num_plain = (count - num_alive - 1) // 2
    num_points = count - num_alive - num_plain - 1
    chosen = [losses[seed % len(losses)]]
    for faults, number in ((at_points, num_points), (plain, num_plain), (alive, num_alive)):
        chosen += [faults[(seed * number + i) % len(faults)] for i in range(number)]
    rng.shuffle(chosen)
    return [Fault(one.kind, one.target, one.failpoint, one.ranks, one.seconds) for one in chosen]


def _all(rng: random.Random, others: list[int]) -> tuple[list[Fault], ...]:
    """Kills at named points, other signals, what is not a signal, and losses of a node."""

    def rank() -> tuple[int, ...]:
        return (rng.choice(others),)

    def two() -> tuple[int, ...]:
        return tuple(rng.sample(others, 2))

    at_points = [
        Fault("kill", "worker", "snapshot.mid_seal", rank()),
        Fault("kill", "worker", "snapshot.before_seal", rank()),
        Fault("kill", "worker", "worker.mid_optimizer", rank()),
        Fault("kill", "ckpt_store", "store.mid_flush"),
        Fault("kill", "ckpt_store", "store.mid_manifest"),
        Fault("double", "worker", "worker.mid_rendezvous", two()),
        Fault("double", "worker", "snapshot.mid_restore", two()),
        Fault("double", "driver", "journal.mid_write", rank()),
    ]
    plain = [
        Fault("kill", "worker", ranks=rank()),
        Fault("stop", "worker", ranks=rank()),
        Fault("kill", "executor"),
        Fault("kill", "init"),
        *(Fault("kill", service) for service in SERVICES),
        Fault("double", "workers", ranks=two()),
        Fault("double", "standby", ranks=rank()),
        Fault("double", "executor", ranks=rank()),
        Fault("stop", "leader"),
    ]
    alive = [
        Fault("freeze", "worker", ranks=rank(), seconds=12.0),
        Fault("locked_journal", "run", seconds=12.0),
        Fault("damaged_arena_header", "worker", ranks=rank()),
        Fault("freeze", "driver", seconds=12.0),
        Fault("spawn_failure", "node", ranks=rank(), seconds=10.0),
        Fault("full_disk", "run", seconds=15.0),
        Fault("freeze", "dataloader", seconds=12.0),
        Fault("flipped_snapshot_bit", "worker", ranks=rank()),
        Fault("slow_disk", "ckpt_store", seconds=10.0),
        Fault("slow", "worker", ranks=rank(), seconds=10.0),
        Fault("silent_node", "node", seconds=5.0),
        Fault("debugger", "worker", ranks=rank(), seconds=3.0),
        Fault("clock_step", "run"),
        Fault("freeze", "executor", seconds=15.0),
        Fault("freeze", "zygote", seconds=12.0),
        Fault("slow_disk", "driver", seconds=10.0),
        Fault("freeze", "ckpt_store", seconds=12.0),
        Fault("freeze", "leader", seconds=8.0),
        Fault("freeze", "monitor", seconds=12.0),
        Fault("freeze", "agent", seconds=12.0),
        Fault("returning_node", "node", seconds=25.0),
    ]
    losses = [
        Fault("lose", "node"),
        Fault("evict", "node"),
        Fault("returning_node", "node", seconds=25.0),
    ]
    return at_points, plain, alive, losses


def healthy(
    run: Run, *, beyond_step: int = -1, fallen: Collection[int] = (), limit_s: float = 120.0
) -> Status:
    """Wait until every rank runs, every node in use has its services,
    and ``beyond_step`` is passed.

    ``fallen`` are pids of workers, services, executors and inits that must have been replaced by
    then.

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
            and not _keepers(run, used) & {*fallen, 0}
            and status.step > beyond_step
            and all(r.status == "running" and r.pid not in fallen for r in status.ranks)
        ):
            return status
        if status.phase in ("finished", "failed", "stopped"):
            break
        time.sleep(0.02)
    raise DeadlineError(f"run {run.name} is not healthy again: {last}")


def _keepers(run: Run, nodes: Collection[int]) -> set[int]:
    """Pids of the nodes' inits and executors; 0 stands for one that does not live."""
    folder = ClusterFolder(run.cluster_folder)
    found = [process for node in nodes for process in (folder.init(node), folder.living(node))]
    return {process.pid if process is not None and process.alive() else 0 for process in found}
