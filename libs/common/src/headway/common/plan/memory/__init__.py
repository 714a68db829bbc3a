"""Memory of a rank before it runs: ``predict`` counts it, ``advise`` says what would lower it."""

from __future__ import annotations

from headway.common.plan.memory.predict import RankMemory, predict, predict_all, worst
from headway.common.plan.memory.shape import MemoryShape

__all__ = ["MemoryShape", "RankMemory", "predict", "predict_all", "worst"]
