"""The driver's own events and actions; everything else it decides on is a message of ``headway.common``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headway.common.wire.message import Message


@dataclass(frozen=True)
class Tick:
    """Time passed; time limits are looked at and unanswered messages are sent again."""


@dataclass(frozen=True)
class DurableFound:
    """The answer to ``FindDurable``: the newest complete checkpoint, or None; ``trouble`` if that cannot be told."""

    checkpoint: tuple[int, str] | None
    trouble: str = ""


@dataclass(frozen=True)
class NotBegun:
    """The journal could not take ``BeginGeneration``: nobody may hear of it."""

    generation: int


@dataclass(frozen=True)
class NodeUnavailable:
    """The engine cannot start the node again: the machine is gone, or was given up."""

    node: int
    reason: str = "the engine cannot start it"


@dataclass(frozen=True)
class Suspicion:
    """The monitor holds a worker for stuck or dead."""

    node: int
    pid: int
    generation: int
    kind: str


@dataclass(frozen=True)
class Hopeless:
    """A fault of the user's that no restart mends, such as a missing module."""

    detail: str


@dataclass(frozen=True)
class Tell:
    """Send a note to a node's executor."""

    node: int
    message: Message


@dataclass(frozen=True)
class BeginGeneration:
    """Record the generation before any worker hears of it; its number is never used again."""

    generation: int
    rank_nodes: dict[int, int]


@dataclass(frozen=True)
class FindDurable:
    """Look for the newest complete checkpoint, of at most ``max_step``, and answer with ``DurableFound``."""

    max_step: int | None = None


@dataclass(frozen=True)
class RestartNode:
    """Have the engine start the node's executor again."""

    node: int


@dataclass(frozen=True)
class Finish:
    """The run is over: ``finished``, ``stopped`` or ``failed``."""

    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class Log:
    """Something a person wants to find in the journal."""

    event: str
    fields: dict[str, Any] = field(default_factory=dict)


Action = Tell | BeginGeneration | FindDurable | RestartNode | Finish | Log
