"""Plans two rings over the nodes below a switch, and concludes which of them is odd.

Both rings have the same neighbours, and the second one runs the other way round. So each node sends
to both of its neighbours and receives from both. A node whose own way is slow is slow with both of
them, in whichever direction; a path between two nodes is slow with no other. These are pure
decisions without sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headway.health.judgement import Thresholds
from headway.health.pairwise.plan import Node, Pair, slow_pairs

LEAST_MEMBERS = 3
"""Fewest members of a ring: with fewer there is no edge to compare one with."""


@dataclass(frozen=True)
class Odd:
    """What is odd below one switch."""

    nodes: tuple[Node, ...] = ()
    """Slow, or damaging bytes, with both neighbours."""
    paths: tuple[Pair, ...] = ()
    """Slow edges, from the first node to the second, that no such node explains."""


def rings(nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """The orders of both rings.

    >>> rings(["a", "b", "c"])
    (['a', 'b', 'c'], ['c', 'b', 'a'])
    """
    return list(nodes), list(reversed(nodes))


def edges(order: Sequence[Node]) -> list[Pair]:
    """The edges as (sender, receiver), each at the place of the member that receives on it."""
    return [(order[at - 1], order[at]) for at in range(len(order))]


def odd_ones(rates: Iterable[Mapping[Pair, float]], thresholds: Thresholds) -> Odd:
    """Judge the edges of each ring by the others of it, then name as few nodes as explain them.

    Args:
        rates: bytes per second of each edge, of each ring; 0.0 if it damages bytes or carries none.
        thresholds: when a rate counts as slow.
    """
    slow = {edge for ring in rates for edge in slow_pairs(ring, thresholds)}
    named: list[Node] = []
    left = set(slow)
    while left:
        node = _worst(left, slow)
        if node is None:
            break
        named.append(node)
        left = {edge for edge in left if node not in edge}
    return Odd(tuple(sorted(named)), tuple(sorted(left)))


def _worst(left: set[Pair], slow: set[Pair]) -> Node | None:
    """The node on most of what is left, of those that are slow with two neighbours or more."""
    candidates = []
    for node in {node for edge in left for node in edge}:
        neighbours = {other for edge in slow if node in edge for other in edge if other != node}
        if len(neighbours) > 1:
            candidates.append((-sum(node in edge for edge in left), node))
    return min(candidates)[1] if candidates else None
