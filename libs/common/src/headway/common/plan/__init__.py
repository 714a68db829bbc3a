"""Pure plans: placement of ranks, size of a model, and what each rank does in a step."""

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
