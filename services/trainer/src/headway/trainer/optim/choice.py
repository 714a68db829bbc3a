"""The optimizer that ``optim.name`` chooses."""

from __future__ import annotations

from headway.trainer.config import OptimConfig
from headway.trainer.optim.adamw import AdamW
from headway.trainer.optim.base import Optimizer, SumPieces
from headway.trainer.optim.lamb import Lamb


def moments(config: OptimConfig) -> tuple[str, ...]:
    """Names of what the optimizer keeps for each parameter, besides the master weights."""
    return {"adamw": AdamW.moments, "lamb": Lamb.moments}[config.name]


def make_optimizer(config: OptimConfig, sum_pieces: SumPieces) -> Optimizer:
    """The optimizer of a rank."""
    if config.name == "lamb":
        return Lamb(config, sum_pieces)
    return AdamW(config)
