"""The live console of a run in a notebook: a pump thread, and the widget that it feeds."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["RunConsole", "Session"]

_HOMES = {"RunConsole": "views", "Session": "session"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
