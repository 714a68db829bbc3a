"""The status of NCCL's RAS subsystem, whether it was printed as text or as JSON.

See "RAS" in NVIDIA's user guide of NCCL. Counts are of operations *launched* by the host: on a run
that makes progress they may differ by a few, so that one status alone shows no hang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RasMember:
    """A rank of a communicator. Unknown numbers are -1, unknown texts empty."""

    rank: int
    """In the communicator."""
    host: str = ""
    pid: int = -1
    gpu: int = -1
    status: str = ""
    """``RUNNING``, ``INIT``, ``FINALIZE``, ``ABORT``, ``ERROR``, ``MISSING``, ``UNRESPONSIVE`` or
    ``DEAD``."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Operations launched, by kind; in JSON only."""


@dataclass(frozen=True, slots=True)
class RasSide:
    """Ranks of a communicator that have launched equally many operations of a kind."""

    op: str
    """Such as ``AllReduce``; ``collective`` before NCCL 2.26."""
    count: int
    num_ranks: int
    members: tuple[RasMember, ...]
    """Those that are listed: all in JSON, those of a minority in text."""


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """A communicator that RAS lists: in JSON each, in text those with a discrepancy."""

    name: str
    """Its hash, ``#0-0`` before it in text."""
    size: int
    """-1 if not printed."""
    errors: tuple[str, ...]
    """``MISMATCH``, ``INCOMPLETE``; empty if all agree."""
    members: tuple[RasMember, ...]
    missing: tuple[RasMember, ...]
    sides: tuple[RasSide, ...]
    """Sides of the kinds of operations whose counts differ, fewest launched first within each."""

    @property
    def behind(self) -> tuple[RasSide, ...]:
        """The sides that have launched fewer operations of a kind than another one."""
        most: dict[str, int] = {}
        for side in self.sides:
            most[side.op] = max(most.get(side.op, 0), side.count)
        return tuple(side for side in self.sides if side.count < most[side.op])


@dataclass(frozen=True, slots=True)
class RasReport:
    """One status."""

    nccl_version: str
    at: str
    """Time of the status as printed; empty in text."""
    communicators: tuple[RasCommunicator, ...]
    dead: tuple[tuple[str, int], ...]
    """(host, pid) of processes that RAS considers dead."""
    silent: tuple[tuple[str, int], ...]
    """(host, pid) of processes that did not answer."""
    num_timeouts: int
    is_whole: bool = True
    """Whether it came to its end."""
