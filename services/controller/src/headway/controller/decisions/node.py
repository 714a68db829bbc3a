"""What the driver knows of one node, and when a lost one may return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headway.common.wire.messages.driver import NodeState
from headway.common.wire.messages.executor import WorkerBeat

CheckState = Literal["none", "wanted", "passed", "failed", "doubted"]
"""Where the check of a machine stands; ``passed`` also if it was not applicable, and ``doubted`` if
it failed what most machines fail, so that the node is used all the same."""


@dataclass(slots=True)
class Node:
    """What the driver knows of a node. Times are those of the driver's own clock."""

    number: int
    status: NodeState = "silent"
    """It is ``active`` if it carries ranks, ``silent`` without a beat, ``lost`` once given up."""
    exclusion: str = ""
    """Why a lost node may not return at its next beat:
    ``gone``, ``evicted``, ``trouble``, ``verdict``, ``check``, or ``ordered`` while the engine
    brings another machine."""
    excluded_process: tuple[int, int] = (-1, -1)
    """The executor that beat when it was excluded; its beats may still be in a socket."""
    is_released: bool = False
    """The engine has taken the machine of an evicted or condemned node away;
    what reports from now on was started anew."""
    beat_at: float = 0.0
    silent_before_s: float = 0.0
    """How long it had been silent when this driver began; 0 from its first beat on."""
    is_missed: bool = False
    """Its silence has been logged."""
    process: tuple[int, int] = (-1, -1)
    """Incarnation and pid of its executor."""
    version: int = -1
    """The version of the newest full beat, -1 before the first."""
    workers: dict[str, WorkerBeat] = field(default_factory=dict)
    services: dict[str, int] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    """The ranks that it carries."""
    generation: int = -1
    """The newest of its workers'."""
    step: int = 0
    """Completed steps, the least of its workers in that generation."""
    trouble: str = ""
    loading_since: float | None = None
    """Since when it has been loading torch; None while it is not."""
    gone: dict[str, int] = field(default_factory=dict)
    """Worker -> pid of those that are dead or as good as dead,
    until no full beat shows them any more."""
    losses: int = 0
    """How often it was given up: another spare is preferred."""
    sources: frozenset[str] = frozenset()
    """Digests of its standbys' code."""
    fell_silent: bool = False
    """It was silent, and has shown no living worker since."""
    check: CheckState = "none"
    check_number: int = 0
    """Number of the newest check that was ordered; results of older ones do not count."""
    check_since: float = 0.0
    """When it was ordered, and from its result on, when that came."""
    check_failures: int = 0
    """How often in a row it has failed."""
    failed_checks: tuple[str, ...] = ()
    check_reason: str = ""
    """What failed, or why nothing could be checked."""


def may_return(node: Node) -> bool:
    """Whether a lost node that reports may be used again."""
    match node.exclusion:
        case "trouble":
            return not node.trouble and any(v.status == "idle" for v in node.workers.values())
        case "verdict":
            return node.process != node.excluded_process
        case "check":
            # with ranks it is not checked: they are better there than nowhere
            is_usable = node.check in ("passed", "doubted") or bool(node.ranks)
            return is_usable or node.process != node.excluded_process
        case "ordered":
            return False
        case "evicted":
            return node.is_released and node.process != node.excluded_process
        case _:
            return True
