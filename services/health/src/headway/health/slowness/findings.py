"""One thing that slows a run, before it is put into words."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.common.wire.messages.health import Cause


@dataclass(frozen=True, slots=True)
class Slowness:
    """What slows a run, on which ranks and since when."""

    cause: Cause
    ranks: tuple[int, ...]
    """One of them or all of them, as ``is_one_of`` says; empty if no rank is to blame."""
    excess: float
    """Time lost as a share of the usual time of the passes."""
    since: int | None
    """The first slow step; None if all that are known are."""
    until: int | None
    """The last slow step; None if it lasts."""
    certainty: float
    """Probability that subject and cause are right."""
    is_one_of: bool = False
    place: str = ""
    """What they are together, such as ``stage 2``."""
    why: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, float], ...] = ()
    """What else it may be, and with which share of what is left to certainty."""
    notes: tuple[str, ...] = field(default=())
    """Findings of the agents about the same node."""
