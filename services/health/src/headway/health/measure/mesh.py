"""Finds which endpoint or which link explains the slow cells of a mesh of measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.health.judgement import Spread, Thresholds, is_worse

LEAST_CELLS = 4
"""With fewer, one disturbed measurement of a healthy machine would be called a fault."""
Cell = tuple[str, str]
"""The two endpoints of a measurement; their order counts."""


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


def blame(rates: Mapping[Cell, float], thresholds: Thresholds) -> Blame:
    """Judge each cell against all others, then explain the slow ones by as few faults as possible.

    An endpoint with two cells or more, or with one to itself, is at fault if all of them are slow.
    Any other slow cell is a bad link, or undecided if neither of its endpoints has another cell.
    Fewer than ``LEAST_CELLS`` cells are not compared with each other. If half of them are slow, the
    slow ones pass for normal: a machine that is slow as a whole is found by comparing machines.
    """
    if len(rates) < LEAST_CELLS:
        return Blame()
    slow = {cell for cell in rates if _is_slow(cell, rates, thresholds)}
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


def _is_slow(cell: Cell, rates: Mapping[Cell, float], thresholds: Thresholds) -> bool:
    others = [rate for other, rate in rates.items() if other != cell]
    return is_worse(rates[cell], Spread.of(others), thresholds)


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
