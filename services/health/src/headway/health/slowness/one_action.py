"""Which ranks take longer than others of their stage for one action, by the rule of verdicts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from headway.common.plan.grid import Grid
from headway.health.slowness.peers import median_of_others
from headway.health.slowness.spans import LEAST_STEPS, raised


def slow_ranks(seconds: npt.NDArray[np.float64], grid: Grid) -> tuple[int, ...]:
    """Ranks that stay slow, the slowest first.

    Args:
        seconds: by step and rank; NaN where nothing is recorded.
    """
    if len(seconds) < LEAST_STEPS:
        return ()
    by_stage = np.where(seconds > 0, seconds, np.nan).astype(np.float32)
    by_stage = by_stage.reshape(len(seconds), grid.pp, grid.tp * grid.dp)
    excess = by_stage / median_of_others(by_stage) - 1
    spans = raised(excess.reshape(seconds.shape))
    lasts = spans.end >= len(seconds) - LEAST_STEPS
    found = np.flatnonzero(spans.is_raised & lasts)
    slowest_first = np.argsort(-spans.level[found], kind="stable")
    return tuple(int(rank) for rank in found[slowest_first])
