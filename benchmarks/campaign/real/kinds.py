"""What is injected into a real run, and what the verdicts have to say about each of it."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from headway.common.errors import InputError
from headway.common.wire.messages.health import Cause, Verdict, VerdictKind
from headway.controller.faults import cgroups
from headway.controller.faults.faults import FAULTS
from headway.controller.faults.inside import INSIDE, check_layout
from headway.controller.faults.network import NETWORK, check_network
from headway.trainer.config import RunConfig

from benchmarks.drill import catalogue
from benchmarks.drill.catalogue import Cost, Fault
from benchmarks.drill.means import why_not

Names = Literal["rank", "node", "part", "service", "program", "nobody"]
"""What a verdict has to name. ``part``: a GPU, a port, a file system or a clock, by its name; nodes
that are emulated share those. ``program``: no rank, but the right cause."""
Goal = Literal["hang", "slow", "nan", ""]
"""Whose limit counts for the time to the verdict."""


@dataclass(frozen=True, slots=True)
class Injection:
    """One row of the catalogue."""

    fault: str
    """As ``headway inject`` knows it."""
    says: frozenset[VerdictKind] = frozenset()
    """Kinds of verdicts that are right; none: nothing may be said."""
    names: Names = "rank"
    target: str = "worker"
    seconds: float = 0.0
    """How long it lasts, unless it has been named before; 0: it is over at once."""
    ends: bool = False
    """Whether its target's process ends by it, or is ended."""
    may_end: bool = False
    """Whether that is right as well, if it lasts for so long."""
    may_heal: bool = False
    """Whether nothing needs to be said if its target has been replaced before anybody waited."""
    goal: Goal = ""
    causes: frozenset[Cause] = frozenset()
    """Right causes; empty: any."""
    part: str = ""
    """What the verdict has to name, for ``part``."""
    factor: float = 0.0
    """Of a rank that is slowed down by another factor than that of ``headway inject``."""

    @property
    def name(self) -> str:
        """Such as ``freeze node`` or ``slow 1.2x``."""
        is_plain = self.target in ("worker", "run") or self.target in self.fault
        target = "" if is_plain or self.names == "part" else f" {self.target}"
        factor = f" {self.factor:g}x" if self.factor else ""
        return f"{self.fault}{target}{factor}"

    @property
    def struck(self) -> Fault:
        """The same for the harness of the drills."""
        cost: Cost = "step" if self.ends or self.may_end else "nothing"
        num_ranks = int(self.target == "worker")
        return Fault(self.fault, self.target, cost, ranks=num_ranks, seconds=self.seconds)


def _hang(fault: str, seconds: float = 600.0, *, ends: bool = True) -> Injection:
    says: frozenset[VerdictKind] = frozenset({"silence"})
    return Injection(fault, says, seconds=seconds, ends=ends, may_end=True, goal="hang")


def _slow(fault: str, factor: float = 0.0) -> Injection:
    return Injection(fault, frozenset({"slow_rank"}), seconds=3600, goal="slow", factor=factor)


def _odd(fault: str) -> Injection:
    causes: frozenset[Cause] = frozenset({"collective_mismatch"})
    says: frozenset[VerdictKind] = frozenset({"unexplained_hang", "crash_report"})
    return Injection(fault, says, "program", may_end=True, causes=causes)


INJECTIONS = (
    Injection("kill", frozenset({"crash"}), ends=True),
    Injection("stop", frozenset({"stopped"}), ends=True),
    Injection("oom", frozenset({"crash", "out_of_memory"}), seconds=30, ends=True),
    _hang("freeze", 12.0),
    _hang("hang"),
    _hang("hang_before_collective"),
    _hang("hang_in_data"),
    _hang("gil", 10.0, ends=False),
    _hang("gc", 10.0, ends=False),
    _slow("slow"),
    _slow("slow_disk"),
    _slow("slow", 1.2),
    Injection("nan", frozenset({"not_finite"}), goal="nan"),
    Injection("flip", frozenset({"silent_corruption"})),
    Injection("flip_weight", frozenset({"silent_corruption"})),
    _odd("mismatch"),
    _odd("skip"),
    Injection(
        "freeze", frozenset({"data_stall"}), "service", "dataloader", 60.0,
        may_end=True, may_heal=True,
    ),
    Injection("freeze", frozenset({"node_silent"}), "node", "node", 30.0, may_end=True),
    Injection("silent_node", frozenset({"node_silent"}), "node", "node", 8.0),
    Injection("returning_node", frozenset({"node_silent"}), "node", "node", 30.0, may_end=True),
    Injection("kernel", frozenset({"gpu_fault"}), "part", "node", part="3b:00"),
    Injection("gpu", frozenset({"gpu_fault"}), "part", "node", part="3b:00.0"),
    Injection("counter", frozenset({"network_fault"}), "part", "node", part="mlx5_3/1"),
    Injection("full_disk", frozenset({"disk_full"}), "part", "run", 15.0, part="runs"),
    Injection("clock_step", frozenset({"clock_error"}), "part", "run"),
    Injection("debugger", names="nobody", seconds=3.0),
    Injection("locked_journal", names="nobody", target="run", seconds=12.0),
    Injection("kill", names="nobody", target="agent"),
    Injection("kill", names="nobody", target="monitor"),
)  # fmt: skip
OF_NOBODY = {
    "damaged_arena_header": "it shows when a snapshot is read: `python -m benchmarks.drill`",
    "flipped_snapshot_bit": "it shows when a snapshot is read: `python -m benchmarks.drill`",
    "spawn_failure": "it shows when a process is started: `python -m benchmarks.drill`",
}
"""Faults that no verdict is about."""
LITTLE = 1.2
"""Up to this factor it is enough to name the tensor-parallel pair of a node, which waits for each
other in every pass; slower ranks are to be told apart."""
OF_HARDWARE = ("kernel", "gpu", "counter")
"""Faults that a node keeps."""
VICTIMS: frozenset[VerdictKind] = frozenset({"peer_lost", "collective_timeout"})
"""Kinds by which a rank says that it suffers: they accuse nobody."""


def refused(config: RunConfig) -> dict[str, str]:
    """Every fault of ``headway inject`` that is not injected into such a run, and why."""
    known = {one.fault for one in INJECTIONS}
    reasons = {fault: _why_not(fault, config) or OF_NOBODY.get(fault, "") for fault in FAULTS}
    return {
        fault: reason or "the campaign has no row for it"
        for fault, reason in reasons.items()
        if reason or fault not in known
    }


def possible(config: RunConfig) -> list[Injection]:
    """What can be injected into such a run on this machine."""
    without = refused(config)
    return [one for one in INJECTIONS if one.fault not in without]


def _why_not(fault: str, config: RunConfig) -> str:
    try:
        if fault in INSIDE:
            check_layout(fault, config)
        elif fault in NETWORK:
            check_network(fault, "")  # ranks of emulated nodes have no network of their own
        elif fault == "oom":
            cgroups.needed("memory")
        elif fault == "gpu" and shutil.which("cc") is None:
            return "the fake NVML needs a C compiler"
    except InputError as error:
        return error.message
    return why_not(catalogue.NEEDS.get(fault, ""))


def is_accusing(verdict: Verdict) -> bool:
    """Whether it names a rank, a node or a part, or what is wrong with the whole run."""
    return verdict.is_open and verdict.kind not in VICTIMS


def agrees(one: Injection, verdict: Verdict, ranks: Collection[int], node: int) -> bool:
    """Whether a verdict is right about an injection into these ranks, on this node."""
    if verdict.kind not in one.says or (one.causes and verdict.cause not in one.causes):
        return False
    match one.names:
        case "rank" if verdict.kind == "out_of_memory":
            return verdict.node == node
        case "rank" if 0 < one.factor <= LITTLE and verdict.rank < 0:
            return verdict.node == node
        case "rank":
            return verdict.rank in ranks
        case "node" | "service":
            return verdict.node == node and verdict.rank < 0
        case "part":
            said = [verdict.name, verdict.remedy, *(row.value for row in verdict.evidence)]
            return any(one.part in text for text in said)
        case _:
            return verdict.rank < 0 or verdict.rank in ranks
