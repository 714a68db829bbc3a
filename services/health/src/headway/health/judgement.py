"""Judges a measured value against those of other machines, by their median and its spread.

Half of the machines must be bad before they move the median or the spread, so one bad machine
hides neither itself nor another one (Leys et al., Journal of Experimental Social Psychology 2013,
on the median absolute deviation).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

DEVIATION_OF_MAD = 1.4826
"""Standard deviations per median absolute deviation, if values are distributed normally."""


@dataclass(frozen=True)
class Spread:
    """What a group of machines reaches."""

    median: float
    deviation: float
    """Standard deviation as estimated from the MAD, in the unit of the values."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ValueError without values."""
        median = statistics.median(values)
        mad = statistics.median(abs(value - median) for value in values)
        return cls(median, DEVIATION_OF_MAD * mad)


@dataclass(frozen=True)
class Thresholds:
    """How far below the others a value must be; both must hold."""

    num_deviations: float
    least_difference: float
    """Share of the median, 0..1. The machines of a quiet fleet may differ by less than a percent;
    then a difference of many deviations still harms nobody."""


def is_worse(
    value: float, others: Spread, thresholds: Thresholds, *, higher_is_better: bool = True
) -> bool:
    """Whether a value is worse than the others by more than both thresholds.

    A better value is never reported, however unusual it is.
    """
    behind = others.median - value if higher_is_better else value - others.median
    return (
        behind > thresholds.least_difference * abs(others.median)
        and behind > thresholds.num_deviations * others.deviation
    )
