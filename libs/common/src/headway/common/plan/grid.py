"""Ranks and their coordinates, which follow from one ordered table of axes.

Tensor parallelism varies fastest, then data, then pipeline: tensor-parallel peers are neighbours,
and data-parallel groups are packed before pipeline stages (MegaScale, arXiv 2402.15627,
section 3.6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.common.config_checks import at_least
from headway.common.errors import ConfigError
from headway.common.plan.stage_map import StageMap

Axis = Literal["tp", "dp", "pp"]
AXES: tuple[Axis, ...] = ("tp", "dp", "pp")
"""The axes of the grid, that of neighbouring ranks first. A further axis needs an entry here, and a
field in ``Coordinates`` and ``Grid``."""


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A rank's place on each axis."""

    tp: int = 0
    dp: int = 0
    pp: int = 0


@dataclass(frozen=True, slots=True)
class Grid:
    """Degrees of parallelism; ``vp`` is the number of model chunks per pipeline rank.

    ``is_v``: the two chunks of each pipeline rank are placed in a V; see ``StageMap``.

    Raises:
        ConfigError: a degree below 1.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    vp: int = 1
    is_v: bool = False

    def __post_init__(self) -> None:
        at_least(self, "", 1, *AXES, "vp")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        size = 1
        for axis in AXES:
            size *= self.degree(axis)
        return size

    @property
    def stage_map(self) -> StageMap:
        """Which virtual stage each chunk of a pipeline rank is."""
        return StageMap(self.pp, self.is_v)

    def degree(self, axis: Axis) -> int:
        """Number of ranks along ``axis``."""
        return int(getattr(self, axis))

    def coordinates(self, rank: int) -> Coordinates:
        """The coordinates of ``rank``. Raises ConfigError for a rank outside the grid."""
        if not 0 <= rank < self.world_size:
            raise ConfigError(
                f"rank {rank} is outside a grid of {self.world_size}",
                remedy=f"use 0 to {self.world_size - 1}",
            )
        found: dict[str, int] = {}
        for axis in AXES:
            rank, found[axis] = divmod(rank, self.degree(axis))
        return Coordinates(**found)

    def place(self, rank: int) -> str:
        """The coordinates of ``rank`` for people, without axes of one rank.

        >>> Grid(pp=2, dp=2).place(2)
        'pp 1 dp 0'
        """
        found = self.coordinates(rank)
        axes = [axis for axis in ("pp", "dp", "tp") if self.degree(axis) > 1]
        return " ".join(f"{axis} {getattr(found, axis)}" for axis in axes) or "alone"

    def rank(self, **place: int) -> int:
        """The rank at these coordinates by axis, 0 where an axis is left out.

        Raises:
            ConfigError: outside the grid.
        """
        rank, wanted = 0, Coordinates(**place)
        for axis in reversed(AXES):
            index = getattr(wanted, axis)
            if not 0 <= index < self.degree(axis):
                raise ConfigError(
                    f"{axis}={index} is outside {self}",
                    remedy=f"use 0 to {self.degree(axis) - 1}",
                )
            rank = rank * self.degree(axis) + index
        return rank

    def stride(self, axis: Axis) -> int:
        """The distance between ranks that are neighbours on ``axis``."""
        stride = 1
        for faster in AXES[: AXES.index(axis)]:
            stride *= self.degree(faster)
        return stride

    def group(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` on ``axis`` only, itself included, in axis order."""
        stride = self.stride(axis)
        first = rank - getattr(self.coordinates(rank), axis) * stride
        return tuple(range(first, first + self.degree(axis) * stride, stride))
