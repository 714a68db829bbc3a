"""Every fault that a drill strikes: what breaks, at which places, and what it may cost a run.

The places are ``local``, emulated nodes of this machine; ``machines``, nodes of a bed of namespaces
without a disk in common; and ``slurm``, the same machines under a real Slurm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Place = Literal["local", "machines", "slurm"]
Cost = Literal["nothing", "step", "checkpoint"]
"""``nothing``: no generation may begin by it. ``step``: one completed step at most is done again.
``checkpoint``: the snapshots in memory may be lost, so the run goes back to a checkpoint."""
LOCAL: tuple[Place, ...] = ("local",)
MACHINES: tuple[Place, ...] = ("machines",)
BOTH: tuple[Place, ...] = ("local", "machines")
BEDS: tuple[Place, ...] = ("machines", "slurm")
DAMAGE = frozenset({"damaged_arena_header", "flipped_snapshot_bit"})
NEEDS = {
    **dict.fromkeys(("freeze", "slow", "slow_disk", "silent_node", "returning_node"), "freezer"),
    "spawn_failure": "forks",
    "full_disk": "mount",
    "clock_step": "clock",
}
"""What a kind needs of the machine, see ``benchmarks.drill.means``; a bed has what it needs."""


@dataclass(frozen=True)
class Fault:
    """One entry. ``kind`` and ``target`` together name it, with ``at`` where it has one."""

    kind: str
    target: str
    """``worker``, ``workers``, ``standby``, a service; ``node``, any; ``driver_node``; ``leader``:
    init, executor, driver and monitor of the driver's node; ``pair``, two nodes of one group;
    ``run``, what all nodes share."""
    cost: Cost = "nothing"
    at: str = ""
    """The crash point at which the process dies; a plain signal comes at a random moment."""
    ranks: int = 0
    """How many it hits."""
    seconds: float = 0.0
    """How long it lasts if it ends by itself."""
    places: tuple[Place, ...] = LOCAL
    loses_node: bool = False
    """Whether a spare may take over: the node is silent for longer than ``node_lost_s``."""
    fences: bool = False
    """Whether a machine that still runs loses the run; it must write nothing any more."""
    limit_s: float = 0.0
    """All ranks must step again within it, in one new generation; 0: without a limit."""
    blames: bool = False
    """Whether the rank that it hits must be named by a verdict, and nobody else."""

    @property
    def name(self) -> str:
        """What ``--only`` takes."""
        return f"{self.kind} {self.target}" + (f" at {self.at}" if self.at else "")


AT_POINTS = (
    Fault("kill", "worker", "step", "snapshot.mid_seal", ranks=1),
    Fault("kill", "worker", "step", "snapshot.before_seal", ranks=1),
    Fault("kill", "worker", "step", "worker.mid_optimizer", ranks=1),
    Fault("kill", "ckpt_store", at="store.mid_flush"),
    Fault("kill", "ckpt_store", at="store.mid_manifest"),
    Fault("double", "worker", "step", "worker.mid_rendezvous", ranks=2),
    Fault("double", "worker", "step", "snapshot.mid_restore", ranks=2),
    Fault("double", "driver", "step", "journal.mid_write", ranks=1),
)
"""Kills at named points."""
SIGNALS = (
    Fault("kill", "worker", "step", ranks=1, places=BOTH),
    Fault("stop", "worker", "step", ranks=1, places=BOTH),
    Fault("kill", "executor", places=BOTH),
    Fault("kill", "init", places=BOTH),
    Fault("kill", "dataloader"),
    Fault("kill", "ckpt_store"),
    Fault("kill", "agent"),
    Fault("kill", "zygote"),
    Fault("kill", "monitor"),
    Fault("kill", "driver", places=BOTH),
    Fault("double", "workers", "step", ranks=2),
    Fault("double", "standby", "step", ranks=1),
    Fault("double", "executor", "step", ranks=1),
    # shorter than node_lost_s, so that the leader's node keeps its ranks
    Fault("stop", "leader", "step", seconds=8.0),
)
"""Other signals."""
LOSSES = (
    Fault("lose", "node", "checkpoint", places=("local", *BEDS), loses_node=True),
    Fault("evict", "node", "checkpoint", loses_node=True),
    Fault("returning_node", "node", "checkpoint", seconds=25.0, loses_node=True),
)
"""What costs a run a node, which comes back after each."""
ALIVE = (
    Fault("freeze", "worker", "step", ranks=1, seconds=12.0),
    Fault("locked_journal", "run", seconds=12.0),
    Fault("damaged_arena_header", "worker", "checkpoint", ranks=1),
    Fault("freeze", "driver", seconds=12.0),
    Fault("spawn_failure", "node", "checkpoint", ranks=1, seconds=10.0),
    Fault("full_disk", "run", seconds=15.0),
    Fault("freeze", "dataloader", seconds=12.0),
    Fault("flipped_snapshot_bit", "worker", "checkpoint", ranks=1),
    Fault("slow_disk", "ckpt_store", seconds=10.0),
    Fault("slow", "worker", "step", ranks=1, seconds=10.0),
    Fault("silent_node", "node", seconds=5.0),
    Fault("debugger", "worker", ranks=1, seconds=3.0),
    Fault("clock_step", "run"),
    Fault("freeze", "executor", "checkpoint", seconds=15.0, loses_node=True),
    Fault("freeze", "zygote", seconds=12.0),
    Fault("slow_disk", "driver", seconds=10.0),
    Fault("freeze", "ckpt_store", seconds=12.0),
    Fault("freeze", "leader", "step", seconds=8.0),
    Fault("freeze", "monitor", seconds=12.0),
    Fault("freeze", "agent", seconds=12.0),
    LOSSES[2],
)
"""What is not a signal, or is over in a while."""
OF_MACHINES = (
    Fault("lose", "driver_node", "checkpoint", places=BEDS),
    Fault("reboot", "node", "checkpoint", places=BEDS),
    Fault("lose_disk", "node", "checkpoint", places=MACHINES),
    Fault("drain", "node", "checkpoint", places=MACHINES),
    Fault("partition", "driver_node", "checkpoint", places=MACHINES, fences=True),
    Fault("partition", "node", "checkpoint", places=MACHINES, fences=True),
    Fault("cut_control", "driver_node", "checkpoint", places=MACHINES, fences=True),
    # its ranks reach the others and the others have the driver: all of them train on
    Fault("cut_control", "node", "step", seconds=15.0, places=MACHINES),
    Fault("cut_fabric", "node", "checkpoint", places=MACHINES, fences=True),
    Fault("cut_fabric", "pair", "checkpoint", places=MACHINES, fences=True),
    Fault("cut_fabric_one_way", "pair", "checkpoint", places=MACHINES, fences=True),
    Fault("delay", "pair", "step", seconds=10.0, places=MACHINES),
    Fault("limit", "node", "step", seconds=10.0, places=MACHINES),
    # as long as health.fabric_silence_s, which starts once an agent has noticed the silence
    Fault("flap", "node", "step", seconds=3.0, places=MACHINES),
    Fault("freeze", "node", "checkpoint", seconds=20.0, places=MACHINES, fences=True),
    Fault("freeze", "driver_node", "checkpoint", seconds=20.0, places=MACHINES, fences=True),
    Fault("stop", "executor", places=MACHINES),
    Fault("kill", "init and executor", places=MACHINES),
    Fault("stop_controller", "slurm", seconds=60.0, places=("slurm",)),
)
"""Faults that only whole machines have, or that can be seen only from outside."""
ALONE = (
    # the main thread hangs between two layers; the process and its other threads live
    Fault("hold", "worker", "step", "worker.in_layer", ranks=1, blames=True),
    # every process of a node beside a ready spare
    Fault("stop", "node", "checkpoint", seconds=60.0, loses_node=True, limit_s=12.0),
    Fault("stop", "driver_node", "checkpoint", seconds=60.0, loses_node=True, limit_s=15.0),
)
"""In no plan of many kinds: struck where ``--only`` names them."""
FAULTS = tuple(dict.fromkeys((*AT_POINTS, *SIGNALS, *ALIVE, *LOSSES, *OF_MACHINES, *ALONE)))


def faults_at(place: Place) -> list[Fault]:
    """Those that can be struck at a place, in a plan of many kinds."""
    return [fault for fault in FAULTS if place in fault.places and fault not in ALONE]


def named(name: str) -> Fault:
    """The entry of that name.

    Raises:
        ValueError: there is none; with the names that there are.
    """
    found = {fault.name: fault for fault in FAULTS}
    if name not in found:
        raise ValueError(f"no fault {name!r}; use one of: {', '.join(found)}")
    return found[name]


@dataclass
class Strike:
    """A fault of a plan: whom it hits, and once it is struck, when that was and who fell."""

    fault: Fault
    ranks: tuple[int, ...] = ()
    struck_at_s: float = 0.0
    again_at_s: float = 0.0
    """When all ranks stepped again; both by the monotonic clock."""
    victims: set[int] = field(default_factory=set)
    """Pids of workers that it may end."""
    fallen: set[int] = field(default_factory=set)
    """Pids of workers, services, executors and inits that it ends for certain."""

    def __str__(self) -> str:
        fault = self.fault
        hit = f" {list(self.ranks)}" if self.ranks else ""
        where = f" at {fault.at}" if fault.at else ""
        long = f" for {fault.seconds:g} s" if fault.seconds else ""
        return f"{fault.kind} {fault.target}{hit}{where}{long}"
