"""Finds which endpoint or which link explains the slow cells of a mesh of measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from headway.health.judgement import Spread, Thresholds

LEAST_CELLS = 4
"""Fewest cells that are compared: with fewer, one disturbed measurement would pass for a fault."""
LEAST_RATE = 1.0
"""Bytes per second that a way counts with if it carries less."""
Cell = tuple[str, str]
"""The two endpoints of a measurement; their order counts."""
V = TypeVar("V")


@dataclass(frozen=True)
class Blame:
    """What is slow in a mesh."""

    endpoints: tuple[str, ...] = ()
    """All of whose cells are slow, so one fault explains them."""
    links: tuple[Cell, ...] = ()
    """Slow cells that none of these endpoints explains."""
    undecided: tuple[Cell, ...] = ()
    """Slow cells whose two endpoints are equally likely, as no other measurement has either."""

    @property
    def is_none(self) -> bool:
        return not (self.endpoints or self.links or self.undecided)

    def __str__(self) -> str:
        parts = [f"{name} is slow with every other" for name in self.endpoints]
        parts += [f"the link {a} -> {b} is slow" for a, b in self.links]
        parts += [f"{a} or {b} is slow" for a, b in self.undecided]
        return "; ".join(parts)


def cells(mesh: Mapping[str, Mapping[str, V]]) -> dict[Cell, V]:
    """The measurements of a mesh that is written as ``{endpoint: {other endpoint: value}}``.

    >>> cells({"eth0": {"memory0": 9.0}})
    {('eth0', 'memory0'): 9.0}
    """
    return {(a, b): value for a, row in mesh.items() for b, value in row.items()}


def blame(rates: Mapping[Cell, float], thresholds: Thresholds) -> Blame:
    """Judge each cell against all others, then explain the slow ones by as few faults as possible.

    An endpoint with two cells or more, or with one to itself, is at fault if all of them are slow.
    Any other slow cell is a bad link, or undecided if neither of its endpoints has another cell.
    """
    slow = set(slow_cells(rates, thresholds))
    endpoints: list[str] = []
    left = set(slow)
    while left:
        worst = _worst(left, rates, slow)
        if worst is None:
            break
        endpoints.append(worst)
        left = {cell for cell in left if worst not in cell}
    undecided = {cell for cell in left if all(_count(name, rates) == 1 for name in cell)}
    return Blame(
        tuple(sorted(endpoints)), tuple(sorted(left - undecided)), tuple(sorted(undecided))
    )


def slow_cells(rates: Mapping[Cell, float], thresholds: Thresholds) -> list[Cell]:
    """The cells that are slow next to all others.

    Fewer than ``LEAST_CELLS`` cells are not compared with each other. If half of them are slow, the
    slow ones pass for normal: a machine that is slow as a whole is found by comparing machines.
    """
    if len(rates) < LEAST_CELLS:
        return []
    return [cell for cell in rates if _is_slow(cell, rates, thresholds)]


def _is_slow(cell: Cell, rates: Mapping[Cell, float], thresholds: Thresholds) -> bool:
    """Whether a rate is far below the others, counted in factors.

    Other work on the machine divides rates rather than taking a fixed amount away: where the others
    differ by two, no difference would be three deviations, not even a rate of nothing.
    """
    others = [math.log(max(rate, LEAST_RATE)) for other, rate in rates.items() if other != cell]
    spread, own = Spread.of(others), math.log(max(rates[cell], LEAST_RATE))
    is_less = own < spread.median + math.log(1 - thresholds.least_difference)
    return is_less and own < spread.median - thresholds.num_deviations * spread.deviation


def _worst(left: set[Cell], rates: Mapping[Cell, float], slow: set[Cell]) -> str | None:
    """The endpoint that explains most of what is left, of those all of whose cells are slow."""
    candidates = []
    for name in {name for cell in left for name in cell}:
        own = {cell for cell in rates if name in cell}
        if own <= slow and (len(own) > 1 or (name, name) in own):
            candidates.append((len(own & left), name))
    # among equals the first name, so that the answer does not depend on the order of a set
    return min(candidates, key=lambda one: (-one[0], one[1]))[1] if candidates else None


def _count(name: str, rates: Mapping[Cell, float]) -> int:
    return sum(name in cell for cell in rates)
