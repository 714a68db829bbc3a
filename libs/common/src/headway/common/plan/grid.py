"""Ranks and their coordinates: tensor parallelism varies fastest, then data, then pipeline.

``rank = (pp_rank * dp + dp_rank) * tp + tp_rank``: tensor-parallel peers are
  neighbours and data-parallel
groups are packed before pipeline stages (MegaScale, arXiv 2402.15627, section 3.6).
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A rank's place on each axis."""

    tp: int
    dp: int
    pp: int


@dataclass(frozen=True, slots=True)
class Grid:
    """Degrees of parallelism; ``vp`` is the number of model chunks per pipeline rank.

    Raises:
        ConfigError: a degree below 1.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    vp: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "vp"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name}={getattr(self, name)} is below 1", remedy="use 1 or more"
                )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp * self.dp

    def coordinates(self, rank: int) -> Coordinates:
        """The coordinates of ``rank``. Raises ConfigError for a rank outside the grid."""
        if not 0 <= rank < self.world_size:
            raise ConfigError(
                f"rank {rank} is outside a grid of {self.world_size}",
                remedy=f"use 0 to {self.world_size - 1}",
            )
        return Coordinates(
            tp=rank % self.tp, dp=rank // self.tp % self.dp, pp=rank // (self.tp * self.dp)
        )

    def rank(self, *, tp: int = 0, dp: int = 0, pp: int = 0) -> int:
        """The rank at these coordinates. Raises ConfigError outside the grid."""
        if not (0 <= tp < self.tp and 0 <= dp < self.dp and 0 <= pp < self.pp):
            raise ConfigError(f"tp={tp}, dp={dp}, pp={pp} is outside {self}", remedy="count from 0")
        return (pp * self.dp + dp) * self.tp + tp

    def tp_group(self, rank: int) -> tuple[int, ...]:
        """The ranks that share ``rank``'s layers, in tp order."""
        c = self.coordinates(rank)
        return tuple(self.rank(tp=tp, dp=c.dp, pp=c.pp) for tp in range(self.tp))

    def dp_group(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold the same parameters for other data, in dp order."""
        c = self.coordinates(rank)
        return tuple(self.rank(tp=c.tp, dp=dp, pp=c.pp) for dp in range(self.dp))

    def pp_group(self, rank: int) -> tuple[int, ...]:
        """The stages of ``rank``'s pipeline, in stage order."""
        c = self.coordinates(rank)
        return tuple(self.rank(tp=c.tp, dp=c.dp, pp=pp) for pp in range(self.pp))
