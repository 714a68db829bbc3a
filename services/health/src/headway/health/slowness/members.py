"""The member of a tensor-parallel group that the others wait for.

Passes of all members take equally long, as they contain the waits for each other. Whoever enters a
collective late waits the less in it, so that member waits the least. A pass less its waits would be
its own work, but that is a small difference of large numbers where ranks share cores. Waits are
recorded in some steps only.
"""

from __future__ import annotations

import numpy as np
from headway.common.plan.collectives import GroupKind
from headway.health.slowness.peers import median, median_of_others, spread
from headway.health.slowness.spans import LEAST
from headway.health.slowness.steps import Floats, StepTable

LEAST_SHARE = 1 / 3
"""Of the time that the group loses, how much more the others wait than its slow member."""
MANY = 3
"""Recorded steps whose spread shows how far one of them may be off."""
DEVIATIONS = 3.0


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
    late = _lateness(table, ranks)
    is_within = np.zeros(len(late), np.bool_)
    is_within[at] = True
    is_known = ~np.isnan(late).all(axis=1)
    within, outside = late[is_within & is_known], late[~is_within & is_known]
    rise = median(within, 0)
    if len(outside) >= MANY:  # how late one member is at all times
        rise = rise - np.nan_to_num(median(outside, 0))
    lost = excess / (1 + excess)
    least = max(LEAST / 2, LEAST_SHARE * lost) + DEVIATIONS * _error(within, outside)
    slow = [rank for rank, share in zip(ranks, rise, strict=True) if share >= least]
    return tuple(slow) if len(slow) == 1 else ranks


def _lateness(table: StepTable, ranks: tuple[int, ...]) -> Floats:
    """By step and member, how much less it waits than the others, as a share of their passes."""
    members = slice(ranks[0], ranks[-1] + 1)
    waits = table.waits(2 * GroupKind.TP)[:, members]
    passes_us = median(table.times["own_us"][:, members], 1)[:, None]
    less = median_of_others(waits) - waits
    return np.asarray(less / np.where(passes_us > 0, passes_us, np.nan), np.float32)


def _error(within: Floats, outside: Floats) -> float:
    """Standard deviation of the median of the steps within; 0 if too few show it."""
    if len(within) + len(outside) < MANY:
        return 0.0
    apart = np.concatenate([part - median(part, 0) for part in (within, outside) if len(part)])
    return 1.25 * spread(apart.ravel()) / float(np.sqrt(max(1, len(within))))
