"""GPT training over tensor, pipeline and data parallelism that recovers in place."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["RunConfig"]


def __getattr__(name: str) -> Any:
    if name != "RunConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.config").RunConfig
