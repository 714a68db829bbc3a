"""A run as polars frames: metrics, flight records, recoveries. Pure functions, with loaders beside them."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = [
    "heat_map",
    "idle",
    "load_evaluations",
    "load_events",
    "load_journal",
    "load_metrics",
    "recoveries",
    "redone_steps",
    "step_times",
    "timeline",
]

_HOMES = {
    "heat_map": "events",
    "idle": "events",
    "load_evaluations": "metrics",
    "load_events": "events",
    "load_journal": "episodes",
    "load_metrics": "metrics",
    "recoveries": "episodes",
    "redone_steps": "events",
    "step_times": "metrics",
    "timeline": "events",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
