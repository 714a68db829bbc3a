"""Faults inside a rank: its main thread hangs, its interpreter is held, its numbers are wrong.

They cannot be done from outside, so they are armed: the rank does it to itself, once, when it comes
to a named point of its program (``headway.common.node.failpoints``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.arming import arm
from headway.trainer.config import RunConfig


@dataclass(frozen=True, slots=True)
class Inside:
    """Where in its program a rank does it, and what."""

    point: str
    how: str
    """An action of a failpoint; one that lasts is followed by the seconds."""
    where: Mapping[str, int] = field(default_factory=dict)
    """Beside the rank."""


INSIDE: dict[str, Inside] = {
    "hang": Inside("worker.in_layer", "sleep"),
    "hang_before_collective": Inside("worker.before_collective", "sleep"),
    "hang_in_data": Inside("worker.before_data", "sleep"),
    "gil": Inside("worker.in_layer", "gil"),
    "gc": Inside("worker.in_layer", "gc"),
    "nan": Inside("worker.gradients", "damage:nan"),
    "flip": Inside("worker.gradients", "damage:flip", {"compared": 1}),
    "flip_weight": Inside("worker.weights", "damage:flip"),
    "mismatch": Inside("worker.reduce", "damage:mismatch"),
    "skip": Inside("worker.reduce", "damage:skip"),
}
_OF_REPLICAS = ("mismatch", "skip", "flip_weight")
"""Done to a collective of data parallelism, or to what it has copied."""


def check_layout(fault: str, config: RunConfig) -> None:
    """Raises InputError if the run has nothing to do the fault to."""
    if fault == "flip_weight" and not config.health.digest_every:
        raise InputError(
            f"{fault!r} is done where replicas compare their weights, and health.digest_every is 0",
            remedy="set health.digest_every to a number of steps",
        )
    if fault in _OF_REPLICAS and config.parallel.dp == 1:
        raise InputError(
            f"{fault!r} needs replicas, and this run has parallel.dp=1",
            remedy="use a run with parallel.dp=2 or more, or `hang_before_collective`",
        )


def arm_inside(fault: str, failpoints: Path, rank: int, seconds: float) -> str:
    """Have ``rank`` do it when it next comes to the point; returns what was armed.

    Args:
        fault: one of ``INSIDE``.
        failpoints: the node's file of armed points.
        rank: whose process.
        seconds: how long, if it lasts.
    """
    found = INSIDE[fault]
    action = found.how if ":" in found.how else f"{found.how}:{seconds:g}"
    key = f"inject-{fault}-{rank}-{time.monotonic_ns()}"
    arm(failpoints, found.point, action, {"rank": rank, **found.where}, key)
    return f"rank {rank} will do {action} at {found.point}"
