"""The member of a tensor-parallel group that the others wait for.

Passes of all members take equally long, as they contain the waits for each other. A member that
enters a collective late waits less in it, so the slow one waits the least. A pass less its waits
would be its own work, but that is a small difference of large numbers where ranks share cores.
Waits are recorded in some steps only.
"""

from __future__ import annotations

import numpy as np
from headway.common.plan.collectives import GroupKind
from headway.health.slowness.peers import median, median_of_others, spread
from headway.health.slowness.spans import LEAST
from headway.health.slowness.steps import Floats, StepTable

LEAST_SHARE = 1 / 8
"""The least by which others wait longer than a slow member, of the time that the group loses."""
MANY = 3
"""Recorded steps whose spread shows how far one of them may be off."""
DEVIATIONS = 4.0
FEW = 3.0
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
    ranks = _members(table, unit)
    if len(ranks) == 1:
        return ranks
    is_slow = np.zeros(len(table.steps), np.bool_)
    is_slow[at] = True
    slow, other = table.rows(np.flatnonzero(is_slow)), table.rows(np.flatnonzero(~is_slow))
    late, usual = _lateness(slow, ranks), _lateness(other, ranks)
    rise, samples = _mean(late), 1 / max(1, len(late))
    if len(usual) >= MANY:  # how late one member is at all times
        rise, samples = rise - median(usual, 0), samples + 1 / len(usual)
    error = _variation(other, unit, late) * float(np.sqrt(samples))
    least = max(LEAST / 2, LEAST_SHARE * excess / (1 + excess), DEVIATIONS * error)
    found = [rank for rank, share in zip(ranks, rise, strict=True) if share >= least]
    return tuple(found) if len(found) == 1 else ranks


def _members(table: StepTable, unit: int) -> tuple[int, ...]:
    tp = table.grid.tp
    return tuple(range(unit * tp, unit * tp + tp))


def _lateness(table: StepTable, ranks: tuple[int, ...]) -> Floats:
    """By how much less each member waits than the others, as a share of the passes.

    One row for each step in which the waits of all are recorded.
    """
    members = slice(ranks[0], ranks[-1] + 1)
    waits = table.waits(2 * GroupKind.TP)[:, members]
    passes_us = median(table.times["own_us"][:, members], 1)
    late = (median_of_others(waits) - waits) / np.where(passes_us > 0, passes_us, np.nan)[:, None]
    return np.asarray(late[~np.isnan(late).any(axis=1)], np.float32)


def _mean(late: Floats) -> Floats:
    """Not the median: what a member is late by comes in few large parts."""
    return late.mean(axis=0) if len(late) else np.zeros(late.shape[1], np.float32)


def _variation(other: StepTable, unit: int, late: Floats) -> float:
    """The standard deviation of a step's lateness while nobody is slow; 0 if few steps show it.

    Some other groups show it as well. While a member is slow it varies with how slow that is. It is
    that of medians, as a step in which something begins is one of these.
    """
    num_units = other.grid.world_size // other.grid.tp
    groups = [(unit + place) % num_units for place in range(min(MOST_GROUPS, num_units))]
    parts = [_lateness(other, _members(other, group)) for group in groups]
    if sum(map(len, parts)) < MANY:
        parts = [late]
    if sum(map(len, parts)) < MANY:
        return 0.0
    apart = np.concatenate([part - median(part, 0) for part in parts if len(part)])
    return spread(apart.ravel()) * (1 + FEW / len(apart))
