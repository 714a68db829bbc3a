"""Pure plans: which rank is where, how big a model is, what each rank does in a step (``plan.schedule``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.common.plan.grid import Coordinates, Grid
    from headway.common.plan.model_shape import ModelShape, mfu
    from headway.common.plan.placement import Placement

__all__ = ["Coordinates", "Grid", "ModelShape", "Placement", "mfu"]

__getattr__, __dir__ = lazy(
    __name__,
    grid="Coordinates Grid",
    model_shape="ModelShape mfu",
    placement="Placement",
)
