"""Gains of rungs from raw times: medians of ratios within rounds, and their spread.

A ratio compares two variants in one round, which ran within minutes of each other, so a drift of
the machine touches both. The spread is twice the scaled median absolute deviation of those ratios
(1.4826 times it estimates a standard deviation; Rousseeuw and Croux, JASA 88, 1993).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SPREADS = 2 * 1.4826
"""Median absolute deviations in one spread."""

Rates = Mapping[int, float]
"""Round -> tokens/s."""


@dataclass(frozen=True)
class Gain:
    """How much faster one variant is than another, as a fraction: 0.05 is 5 %."""

    median: float
    spread: float | None
    """None after a single round."""
    rounds: int

    @property
    def is_within_spread(self) -> bool:
        """Whether it may be chance; so it is where the spread is not known."""
        return self.spread is None or abs(self.median) <= self.spread

    def __str__(self) -> str:
        """``+4.1 % ±1.0``."""
        around = "" if self.spread is None else f" ±{100 * self.spread:.1f}"
        return f"{100 * self.median:+.1f} %{around}"


def gain(rates: Rates, over: Rates) -> Gain | None:
    """Gain of ``rates`` over those of another variant; None without a common round."""
    ratios = [rate / over[number] - 1.0 for number, rate in rates.items() if number in over]
    if not ratios:
        return None
    return Gain(statistics.median(ratios), spread(ratios), len(ratios))


def spread(values: Sequence[float]) -> float | None:
    """The spread of values, None for one."""
    if len(values) < 2:
        return None
    middle = statistics.median(values)
    return SPREADS * statistics.median(abs(value - middle) for value in values)


def ranking(gains: Mapping[str, Gain]) -> str:
    """Names from the largest gain to the smallest: ``dp > tp ~ pp``.

    ``~`` joins those that are not apart from the first of them by more than the larger spread; they
    are in the order of ``gains``, so that chance does not change the text.
    """
    groups: list[list[str]] = []
    for name in sorted(gains, key=lambda name: -gains[name].median):
        if groups and _is_tie(gains[groups[-1][0]], gains[name]):
            groups[-1].append(name)
        else:
            groups.append([name])
    order = list(gains)
    return " > ".join(" ~ ".join(sorted(group, key=order.index)) for group in groups)


def _is_tie(a: Gain, b: Gain) -> bool:
    if a.spread is None or b.spread is None:
        return True
    return abs(a.median - b.median) <= max(a.spread, b.spread)
