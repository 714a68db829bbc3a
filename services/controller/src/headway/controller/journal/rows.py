"""Rows of the journal on their way to the file and from it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Record:
    """An event of the run, or an input of a decision, on its way to the file."""

    table: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class ClockReading:
    """What one boot of a node's machine adds to its monotonic clock for the run's clock."""

    node: int
    boot_id: str
    offset_ns: int
    uncertainty_ns: int
    monotonic_s: float
    """When it was found, by the run's clock."""
    unix_s: float


CLOCK_FIELDS = tuple(field.name for field in dataclasses.fields(ClockReading))


def as_json(fields: dict[str, Any]) -> str:
    """Return what an event says as JSON.

    A number that is not finite becomes null: JSON has none, and readers let SQLite leave out what
    is not JSON.
    """
    try:
        return json.dumps(fields, sort_keys=True, default=str, allow_nan=False)
    except ValueError:
        finite = json.loads(json.dumps(fields, default=str), parse_constant=lambda _: None)
        return json.dumps(finite, sort_keys=True)
