"""What the driver knows of a node, and how long it waits for one."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.common.wire.messages.executor import WorkerBeat


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds; see ``RecoveryConfig``."""

    join_s: float
    out_s: float
    node_silent_s: float
    node_lost_s: float
    max_crashes: int


@dataclass
class Node:
    """What the driver knows of a node."""

    status: str = "silent"
    """``active``, ``spare``, ``silent`` (no beat) or ``lost`` (given up)."""
    heard_at: float = 0.0
    asked_at: float = float("-inf")
    workers: dict[str, WorkerBeat] = field(default_factory=dict)
    services: dict[str, int] = field(default_factory=dict)
