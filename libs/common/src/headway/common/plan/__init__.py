"""Pure plans: which rank is where, how big a model is, what each rank does in a step (``plan.schedule``)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.common.plan.grid import Coordinates, Grid
    from headway.common.plan.model_shape import ModelShape, mfu
    from headway.common.plan.placement import Placement

_HOMES = {
    "Coordinates": "grid",
    "Grid": "grid",
    "ModelShape": "model_shape",
    "Placement": "placement",
    "mfu": "model_shape",
}

__all__ = ["Coordinates", "Grid", "ModelShape", "Placement", "mfu"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
