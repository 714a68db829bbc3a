"""Engines that provide nodes: the local one emulates them on this machine."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["ClusterFolder", "Engine", "LocalEngine", "NodeLost"]

_HOMES = {"ClusterFolder": "cluster", "Engine": "engine", "LocalEngine": "local", "NodeLost": "engine"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
