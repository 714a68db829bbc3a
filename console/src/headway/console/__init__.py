"""The front end of Headway: launch, steer and watch runs, from a notebook or a shell."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Cluster", "Run"]

_HOMES = {"Cluster": "cluster", "Run": "run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
