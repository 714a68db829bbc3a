"""The commands that a run has been given, from rows of the journal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal, get_args

from headway.common.wire.messages.worker import Steer, SteerOperation

STEER = "operation, name, value, count, tokens"
OPERATIONS = {*get_args(SteerOperation), "retired"}
SPENT_ON_RESUME = ("stop", "pause", "checkpoint", "rollback")
"""Commands that have had their effect when an ended run is resumed;
a rate that was set still holds."""


def steer_of(
    sequence: int,
    operation: SteerOperation | Literal["retired"],
    name: str,
    value: float,
    count: int,
    tokens: str,
) -> Steer:
    """A command from the columns ``sequence`` and ``STEER``. Raises ValueError: it is damaged."""
    if operation not in OPERATIONS:
        raise ValueError(f"there is no command {operation!r}")
    return Steer(
        sequence=sequence,
        operation=operation,
        name=name,
        value=value,
        count=count,
        tokens=tuple(json.loads(tokens)),
    )


def commands_of(rows: Iterable[tuple[Any, ...]], spent: int) -> list[Steer]:
    """Every command in order; those up to ``spent`` are ``retired`` if they had their effect."""
    return [
        steer_of(
            sequence,
            "retired" if sequence <= spent and operation in SPENT_ON_RESUME else operation,
            *rest,
        )
        for sequence, operation, *rest in rows
    ]
