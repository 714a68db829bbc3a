"""Where each rank is in each group: what every source of evidence is turned into.

Group tables of a live run, dumps of the recorders of NCCL and gloo, and the lines of a watchdog say
the same thing in different words and with different gaps: which operations of a group a rank has
entered, which of them its device has begun, and which have finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_UNEVEN = ("gather", "scatter", "all_gather_v", "reduce_scatter_v")
_ONE_SIDED = ("broadcast", "reduce", "gather", "scatter", "send", "recv")


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that carry out the same operations in the same order, or the two ends of messages."""

    name: str
    members: tuple[int, ...]
    """Global ranks; of messages, the sender and then the receiver."""
    is_message: bool = False
    is_composite: bool = False
    """Whether what is done in it is made of operations of other groups, so that it may have
    finished on one member while another still waits for a third."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a rank does in a group."""

    name: str
    """Such as ``all_reduce``."""
    num_elements: int = -1
    """On this rank; -1 if unknown."""
    dtype: str = ""
    """Type of the elements; empty if unknown."""

    @property
    def has_own_sizes(self) -> bool:
        """Whether members may give sizes of their own, as in a mixture of experts."""
        return self.name.startswith(("all_to_all", "alltoall")) or self.name in _UNEVEN

    @property
    def is_one_sided(self) -> bool:
        """Whether some members may finish although others have not received anything."""
        return self.name in _ONE_SIDED

    def __str__(self) -> str:
        size = f" of {self.num_elements} elements" if self.num_elements >= 0 else ""
        return self.name + size


@dataclass(frozen=True, slots=True)
class Pending:
    """An operation that a rank has entered and not finished."""

    group: str
    sequence: int
    has_begun: bool | None = None
    """Whether its device has begun it; None if the source does not tell."""


@dataclass(slots=True)
class Position:
    """One rank."""

    rank: int
    entered: dict[str, int] = field(default_factory=dict)
    """The newest operation that it has entered, by group."""
    done: dict[str, int] = field(default_factory=dict)
    """The newest that is known to have finished there; absent if the source does not tell."""
    pending: tuple[Pending, ...] = ()
    """Entered and not finished, the oldest first."""
    operations: dict[tuple[str, int], Operation] = field(default_factory=dict)
    """Operations that are still known, by (group, sequence)."""
    is_working: bool = False
    """Whether its host is known to wait for no other rank, whatever is pending."""
    runs_ahead: bool = False
    """Whether its host queues operations for a device. Then only the oldest pending one is being
    worked on for certain; else all of them are."""
    has_ended: bool = False
    """Whether its process has ended by itself."""
    knows_starts: bool = False
    """Whether the source records what its device has begun."""

    def has_entered(self, group: str, sequence: int) -> bool:
        """Whether it takes part in an operation, at least by its host."""
        return self.entered.get(group, 0) >= sequence

    def has_finished(self, group: str, sequence: int) -> bool:
        """Whether an operation is known to have finished there."""
        return self.done.get(group, 0) >= sequence


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole run at one moment, as far as it was observed."""

    groups: Mapping[str, Group]
    positions: Mapping[int, Position]

    def unreported(self, group: str) -> list[int]:
        """Members of a group of which nothing is known."""
        return [rank for rank in self.groups[group].members if rank not in self.positions]
