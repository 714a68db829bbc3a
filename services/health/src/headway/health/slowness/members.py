"""The member of a tensor-parallel group that the others wait for.

Passes of all members take equally long, as they contain the waits for each other. A member that
enters a collective late waits less in it, so the slow one waits the least. A pass less its waits
would be its own work, but that is a small difference of large numbers where ranks share cores.
Waits are recorded in some steps only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from headway.common.plan.collectives import GroupKind
from headway.health.slowness.peers import median, median_of_others, spread
from headway.health.slowness.spans import LEAST
from headway.health.slowness.steps import Floats, StepTable

LEAST_PART = 1 / 8
"""The least by which others wait longer than a slow member, of the time that the group loses."""
LEAST_ROWS = 3
"""Recorded steps whose spread shows how far one of them may be off."""
DEVIATIONS = 4.0
FEW_ROWS = 3.0
"""Over the number of steps: by how much the spread of few may be larger than it looks."""
MOST_GROUPS = 8
"""Groups whose waits show what is usual."""


def slow_members(table: StepTable, unit: int, at: slice, excess: float) -> tuple[int, ...]:
    """The member that makes a group slow in the steps of ``at``; all if that is not certain.

    Args:
        unit: number of the group, counted from 0.
        at: rows of the table in which the group is slow.
        excess: by which its passes exceed the usual time, as a share of that.
    """
    tp = table.grid.tp
    ranks = tuple(range(unit * tp, unit * tp + tp))
    if tp == 1:
        return ranks
    is_slow = np.zeros(len(table.steps), np.bool_)
    is_slow[at] = True
    late = _lateness(table, unit, is_slow)
    spread_of_one = _usual_spread(table, unit, ~is_slow, late)
    if not len(late) or spread_of_one is None:
        return ranks
    usual = _lateness(table, unit, ~is_slow)
    rise, samples = late.mean(axis=0), 1 / len(late)  # it comes in few large parts
    if len(usual) >= LEAST_ROWS:  # how late one member is at all times
        rise, samples = rise - median(usual, 0), samples + 1 / len(usual)
    error = spread_of_one * float(np.sqrt(samples))
    least = max(LEAST / 2, LEAST_PART * excess / (1 + excess), DEVIATIONS * error)
    found = [rank for rank, share in zip(ranks, rise, strict=True) if share >= least]
    return tuple(found) if len(found) == 1 else ranks


def _lateness(table: StepTable, unit: int, rows: npt.NDArray[np.bool_]) -> Floats:
    """By how much less each member waits than the others, as a share of the passes.

    One row for each of ``rows`` in which the waits of all are recorded.
    """
    tp = table.grid.tp
    members = slice(unit * tp, unit * tp + tp)
    waits = table.waits(2 * GroupKind.TP)[:, members][rows]
    passes_us = median(table.times["own_us"][:, members][rows], 1)
    late = (median_of_others(waits) - waits) / np.where(passes_us > 0, passes_us, np.nan)[:, None]
    return np.asarray(late[~np.isnan(late).any(axis=1)], np.float32)


def _usual_spread(
    table: StepTable, unit: int, rows: npt.NDArray[np.bool_], late: Floats
) -> float | None:
    """The standard deviation of a step's lateness while nobody is slow; None if few steps show it.

    Some other groups show it as well. While a member is slow it varies with how slow that is. It is
    that of medians, as a step in which something begins is one of these.
    """
    num_units = table.grid.world_size // table.grid.tp
    groups = [(unit + place) % num_units for place in range(min(MOST_GROUPS, num_units))]
    parts = [_lateness(table, group, rows) for group in groups]
    if sum(map(len, parts)) < LEAST_ROWS:
        parts = [late]
    if sum(map(len, parts)) < LEAST_ROWS:
        return None
    apart = np.concatenate([part - median(part, 0) for part in parts if len(part)])
    return spread(apart.ravel()) * (1 + FEW_ROWS / len(apart))
