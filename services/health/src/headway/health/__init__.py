"""Health of a training cluster: checks of a node, an agent per node, a monitor per run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.health.client import CheckResult, run_checks, verdicts_of
    from headway.health.config import HealthConfig

__all__ = ["CheckResult", "HealthConfig", "run_checks", "verdicts_of"]

_MODULES = {
    "CheckResult": "client",
    "HealthConfig": "config",
    "run_checks": "client",
    "verdicts_of": "client",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
