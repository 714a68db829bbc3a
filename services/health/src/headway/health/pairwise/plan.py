"""Plans two rounds of pairs and concludes which nodes are bad: pure decisions, no sockets.

A measurement of a pair cannot show which of the two is slow. So in the first round neighbours
measure each other, and in the second each node of a slow pair measures with a node of a fast pair:
a node that is slow both times is bad (DLRover checks its nodes in this way). Both rounds take as
long with a thousand nodes as with eight, since pairs measure at the same time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.health.judgement import Spread, Thresholds, is_worse

Node = str
Pair = tuple[Node, Node]
LEAST_NODES = 4
"""Fewest nodes that are judged: with fewer there are no two pairs to compare."""


@dataclass(frozen=True)
class Round:
    """Pairs of nodes that measure at the same time."""

    pairs: tuple[Pair, ...]
    left_out: tuple[Node, ...] = ()
    """Nodes for which there is no partner in this round."""


@dataclass(frozen=True)
class Conclusion:
    """What two rounds of links show."""

    bad: tuple[Node, ...] = ()
    """Slow with two different partners, or after it was left out in the first round, with one."""
    slow_paths: tuple[Pair, ...] = ()
    """Slow with each other and with nobody else: the path between them, or something passing."""
    not_judged: tuple[Node, ...] = ()
    """Suspects for which there was no partner from a fast pair."""


def first_round(nodes: Sequence[Node]) -> Round:
    """Pair neighbours; of an odd number the last one is left out, and measured in the second."""
    pairs = tuple(zip(nodes[::2], nodes[1::2], strict=False))
    return Round(pairs, tuple(nodes[2 * len(pairs) :]))


def second_round(first: Round, rates: Mapping[Pair, float], thresholds: Thresholds) -> Round:
    """Pair each node of a slow pair, and one left out, with a node of a fast pair.

    The first node of each pair is the suspect.
    """
    slow = slow_pairs(rates, thresholds)
    suspects = [*(node for pair in first.pairs if pair in slow for node in pair), *first.left_out]
    partners = [node for pair in first.pairs if pair not in slow for node in pair]
    pairs = tuple(zip(suspects, partners, strict=False))
    return Round(pairs, tuple(suspects[len(pairs) :]))


def slow_pairs(rates: Mapping[Pair, float], thresholds: Thresholds) -> set[Pair]:
    """The pairs whose rate is worse than that of the others, and those that carry nothing."""
    return {pair for pair in rates if not rates[pair] or _is_slow(pair, rates, thresholds)}


def conclude(
    first: Mapping[Pair, float],
    second: Mapping[Pair, float],
    planned: Round,
    thresholds: Thresholds,
) -> Conclusion:
    """Judge the second round by the fast pairs of the first one.

    Args:
        first: bytes per second of each pair of the first round, the slower direction.
        second: the same of the second one, whose pairs begin with the suspect.
        planned: the second round.
        thresholds: when a rate counts as slow.
    """
    slow = slow_pairs(first, thresholds)
    usual = [rate for pair, rate in first.items() if pair not in slow]
    bad = tuple(pair[0] for pair, rate in second.items() if _is_low(rate, usual, thresholds))
    open_nodes = {*bad, *planned.left_out}
    paths = tuple(pair for pair in first if pair in slow and not open_nodes & set(pair))
    return Conclusion(bad, paths, planned.left_out)


def slow_nodes(values: Mapping[Node, float], thresholds: Thresholds) -> list[Node]:
    """The nodes whose own value is worse than that of the others."""
    return [node for node in values if _is_slow(node, values, thresholds)]


def still_slow(
    again: Mapping[Node, float], values: Mapping[Node, float], thresholds: Thresholds
) -> list[Node]:
    """The nodes measured again that are slow next to those that were not."""
    usual = [value for node, value in values.items() if node not in again]
    return [node for node, value in again.items() if _is_low(value, usual, thresholds)]


def usual_rate(rates: Iterable[float]) -> float:
    """What is shown as the others' rate, 0 if there is none."""
    found = list(rates)
    return statistics.median(found) if found else 0.0


def _is_slow(key: Any, values: Mapping[Any, float], thresholds: Thresholds) -> bool:
    """Judge one value by all others, which it may not shift itself."""
    return _is_low(values[key], [v for k, v in values.items() if k != key], thresholds)


def _is_low(value: float, others: Sequence[float], thresholds: Thresholds) -> bool:
    return bool(others) and is_worse(value, Spread.of(others), thresholds)
