"""Since which step, and until which, something takes longer than it should.

The interval with the largest sum of (excess - half the shift) is the most probable one in which a
level was raised (the cumulative sum of Page 1954). It is looked for twice: for the least shift that
counts, and then for the shift that was found, which gives its first step exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from headway.health.slowness.peers import median, spread
from headway.health.slowness.steps import Floats, Ints

LEAST = 0.05
"""Least excess that counts, as a share of the usual time. Healthy ranks differ by 1 to 2 %."""
LEAST_STEPS = 8
LEAST_SHARE = 0.7
"""Share of the steps since then that must be raised by at least half the level."""
NUM_WINDOWS, LEAST_WINDOWS = 5, 3
DEVIATIONS = 5.0
"""Deviations among columns that a raised level exceeds."""
APART = 1 / 6
"""Columns are taken to differ by this share of ``least``, or by more, if there are at least
``MANY``."""
MANY = 16
MOST = 1.0
"""Larger excesses count as this much in the search, so that no single step outweighs many."""


@dataclass(frozen=True, slots=True)
class Spans:
    """By column of a table: where its excess is raised."""

    start: Ints
    """Row of the first such step."""
    end: Ints
    """Row behind the last one."""
    level: Floats
    """Median excess within, as a share of the usual time."""
    mean: Floats
    deviations: Floats
    """The level over what it varies by among columns and steps."""
    num_windows: Ints
    """In how many of five parts the median is raised."""
    share: Floats
    """Share of the steps within that are raised by at least half the level."""
    least: float

    @property
    def is_raised(self) -> npt.NDArray[np.bool_]:
        """Whether it is long, clear and lasting enough to be named."""
        return (
            (self.end - self.start >= LEAST_STEPS)
            & (self.level >= self.least)
            & (self.deviations >= DEVIATIONS)
            & (self.num_windows >= LEAST_WINDOWS)
            & (self.share >= LEAST_SHARE)
        )


def raised(excess: Floats, least: float = LEAST) -> Spans:
    """Where each column of a table of steps is raised by at least ``least``.

    A column of which too little is known is nowhere.
    """
    known = ~np.isnan(excess)
    smooth = _without_spikes(_filled(excess))
    start, end = _most_raised(smooth, np.full(excess.shape[1], least / 2, np.float32))
    level = _level(excess, start, end)
    shift = np.clip(np.nan_to_num(level), least, max(MOST, least))
    start, end = _most_raised(smooth, (shift / 2).astype(np.float32))
    level = _level(excess, start, end)
    inside = _inside(excess, start, end)
    count = (known & inside).sum(0)
    total = np.where(known & inside, excess, 0).sum(0)
    jitter = 1.25 * noise(excess) / np.sqrt(np.maximum(count, 1))
    # of few columns, a raised one and those that are compared with it would be most
    is_many = excess.shape[1] >= MANY
    differ = max(APART * least, spread(median(excess, 0)) if is_many else 0.0)
    return Spans(
        start, end, np.nan_to_num(level),
        (total / np.maximum(count, 1)).astype(np.float32),
        (np.nan_to_num(level) / np.hypot(differ, jitter)).astype(np.float32),
        _windows(excess, start, end, least),
        ((known & inside & (excess >= level / 2)).sum(0) / np.maximum(count, 1)).astype(np.float32),
        least,
    )  # fmt: skip


def noise(excess: Floats) -> float:
    """How much a value varies from one step to the next, whatever its level."""
    if len(excess) < 2:
        return 0.0
    steps = np.abs(np.diff(excess, axis=0))
    known = steps[~np.isnan(steps)]
    # 80 % of normal values are within 1.28 deviations; of a median, times that are one of two
    # would show nothing
    return float(np.quantile(known, 0.8)) / 1.28 / np.sqrt(2) if len(known) else 0.0


def usual(values: Floats) -> Floats:
    """The usual level of each column: the lowest median of five parts of its time.

    What has become slow was not so before.
    """
    parts = [median(part, 0) for part in np.array_split(values, NUM_WINDOWS) if len(part)]
    return np.asarray(np.fmin.reduce(parts), np.float32)


def _filled(values: Floats) -> Floats:
    """Replace each NaN by the value before it, or the first one after; 0 without any."""
    found = values
    for turn in (1, -1):
        found = found[::turn]
        rows = np.where(np.isnan(found), 0, np.arange(len(found))[:, None])
        np.maximum.accumulate(rows, axis=0, out=rows)
        found = np.take_along_axis(found, rows, 0)[::turn]
    return np.nan_to_num(found)


def _without_spikes(values: Floats) -> Floats:
    """The median of three steps, which keeps the place of a lasting change."""
    if len(values) < 3:
        return values
    before, after = values[:-2], values[2:]
    low, high = np.minimum(before, after), np.maximum(before, after)
    inner = np.clip(values[1:-1], low, high)
    return np.concatenate([values[:1], inner, values[-1:]])


def _most_raised(values: Floats, half: Floats) -> tuple[Ints, Ints]:
    # what is looked for counts in full
    values = np.minimum(values, np.maximum(MOST, 2 * half))
    sums = np.cumsum(values - half, axis=0, dtype=np.float64)
    sums = np.concatenate([np.zeros((1, values.shape[1])), sums])
    end = np.argmax(sums - np.minimum.accumulate(sums, axis=0), axis=0)
    before = np.where(np.arange(len(sums))[:, None] <= end, sums, np.inf)
    # of equal sums the last one: the shortest interval
    start = len(sums) - 1 - np.argmin(before[::-1], axis=0)
    return start, end


def _inside(values: Floats, start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
    row = np.arange(len(values))[:, None]
    return np.asarray((row >= start) & (row < end))


def _level(values: Floats, start: Ints, end: Ints) -> Floats:
    return median(np.where(_inside(values, start, end), values, np.nan).astype(np.float32), 0)


def _windows(values: Floats, start: Ints, end: Ints, least: float) -> Ints:
    found = np.zeros(values.shape[1], np.int64)
    length = end - start
    for number in range(NUM_WINDOWS):
        first = start + length * number // NUM_WINDOWS
        last = start + length * (number + 1) // NUM_WINDOWS
        found += np.nan_to_num(_level(values, first, last)) >= least
    return found
