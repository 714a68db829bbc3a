"""Pictures of all ranks: the heat map of an action, and the grid in three dimensions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from headway.common.output import counted
from headway.common.plan.grid import Grid
from headway.console.analysis.rank_times import RankTimes, lower_median
from headway.console.pictures.page import Picture

UNKNOWN = 0
USUAL, PER_DOUBLING = 128, 48
"""The byte of a ratio of 1, and how much larger that of twice as much is; as in ``sheet.js``."""
_HEAT_NOTE = (
    "Colour: time over the median of the ranks of the same stage. Rows are stages and in them "
    "tensor parallel ranks, columns replicas; or ranks over steps, where a row of pixels shows the "
    "slowest of its ranks. Framed: ranks that stay slower than the others of their stage, as "
    "`headway diagnose` judges it."
)
_GRID_NOTE = (
    "Each point is a rank. Drag to turn, wheel to zoom, click to select a rank: lines lead to its "
    "peers, and moving points show the way of a micro-batch through the stages and back."
)


def heat_map(times: RankTimes) -> Picture:
    """Ranks as the grid, or over steps."""
    data = {
        "label": times.label,
        "grid": _degrees(times.grid),
        "steps": np.array(times.steps, np.int32),
        "seconds": times.medians.astype(np.float32),
        "ratios": _levels(times.ratios),
        "overall": _levels(lower_median(times.ratios, axis=0)),
        "outliers": np.array(times.outliers, np.int32),
    }
    found = counted(len(times.outliers), "outlier")
    title = f"{times.label}: {found} among {times.grid.world_size:,} ranks"
    return Picture("heat", title, data, _HEAT_NOTE)


def grid_3d(
    grid: Grid, marks: Mapping[int, str], times: RankTimes | None = None, lead: str = ""
) -> Picture:
    """The grid with what is stuck or slow marked.

    Args:
        marks: why a rank is marked, for people.
        times: colours ranks as in the heat map.
        lead: what the picture is about, for its title.
    """
    overall = np.full(grid.world_size, UNKNOWN, np.uint8)
    if times is not None:
        overall = _levels(lower_median(times.ratios, axis=0))
    shown = {rank: why for rank, why in marks.items() if 0 <= rank < grid.world_size}
    data = {
        "grid": _degrees(grid),
        "overall": overall,
        "marked": np.array([*shown], np.int32),
        "why": [*shown.values()],
    }
    size = f"tp {grid.tp} x pp {grid.pp} x dp {grid.dp}"
    return Picture("grid", f"{lead or 'Grid'}: {size}", data, _GRID_NOTE)


def _levels(ratios: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Ratios as bytes, on a logarithmic scale; 0 where one is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        level = USUAL + PER_DOUBLING * np.log2(ratios)
    level = np.clip(np.rint(level), 1, 255)
    return np.where(np.isnan(level), UNKNOWN, level).astype(np.uint8)


def _degrees(grid: Grid) -> dict[str, int]:
    return {"tp": grid.tp, "pp": grid.pp, "dp": grid.dp}
