"""Memory of a rank before it runs: ``predict`` counts it, ``advise`` names what lowers it."""

from __future__ import annotations

from headway.common.plan.memory.advice import Saving, advise, describe, size
from headway.common.plan.memory.predict import RankMemory, predict, predict_all, worst
from headway.common.plan.memory.shape import MemoryShape

__all__ = [
    "MemoryShape",
    "RankMemory",
    "Saving",
    "advise",
    "describe",
    "predict",
    "predict_all",
    "size",
    "worst",
]
