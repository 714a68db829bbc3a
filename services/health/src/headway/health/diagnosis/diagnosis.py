"""What is wrong with a run, as a person and a program can act on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from headway.common.wire.messages.health import Cause

Kind = Literal["hang", "fault", "slow", "none"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is at fault, or suffers. Unknown parts are -1 or empty."""

    rank: int = -1
    node: str = ""
    gpu: str = ""
    """PCI address, or index on its node."""
    link: str = ""
    """Such as ``mlx5_3 port 1``."""

    def __str__(self) -> str:
        parts = [f"rank {self.rank}"] if self.rank >= 0 else []
        parts += [f"GPU {self.gpu}"] if self.gpu else []
        parts += [self.link] if self.link else []
        where = f" on {self.node}" if self.node and parts else self.node
        return " with ".join(parts) + where


@dataclass(frozen=True, slots=True)
class Observation:
    """A fact, and what shows it."""

    file: str
    """A file of a folder, or the source of a verdict's evidence."""
    text: str
    at_s: float | None = None
    """When, in seconds since 1970; None if that is not known."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that is wrong."""

    kind: Kind
    cause: Cause
    summary: str
    """What is wrong with whom, in one sentence."""
    culprits: tuple[Subject, ...] = ()
    victims: tuple[Subject, ...] = ()
    """They only wait, or their errors follow from the fault."""
    where: str = ""
    """In whose code, or in which part."""
    why: tuple[str, ...] = ()
    """What supports it, and what was ruled out."""
    do: str = ""
    """What to do, in one sentence."""
    confidence: float = 0.0
    """0..1."""
    alternatives: tuple[tuple[str, float], ...] = ()
    """What else it may be, with the probability."""
    done: str = ""
    """What was done about it; empty if nobody has decided."""
    since: float | None = None
    """Seconds since 1970, None if unknown."""
    since_error_s: float = 0.0
    """It began at most this much earlier or later."""
    since_step: int | None = None
    """The first step of a run that shows it, None if that is not known."""
    until_step: int | None = None
    """The last one, None if it is not over."""
    evidence: tuple[Observation, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def ranks_in_words(ranks: tuple[int, ...] | list[int], most: int = 8) -> str:
    """Such as ``ranks 1, 2 and 5 more``."""
    shown = ", ".join(map(str, list(ranks)[:most]))
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}{more}"
