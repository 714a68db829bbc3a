"""Chooses which nodes of a run are its spares: one per leaf switch first.

A spare below the leaf of a lost node takes its ranks over without a byte more over the spine, so
spares are spread before ranks are placed on the others.
"""

from __future__ import annotations

from collections import Counter

from headway.common.plan.topology import Chain, Topology


def choose_spares(topology: Topology, count: int) -> tuple[int, ...]:
    """The nodes that carry no ranks at first, in order.

    Deterministic. One after the other is taken from the leaf with the fewest spares, then from
    below the switches above it that have the fewest, then from the leaf with the most nodes left,
    then from the last leaf; in a leaf the last node comes first. A leaf gives its last node only
    when all leaves have one left.

    >>> choose_spares(Topology((("a",), ("a",), ("a",), ("b",), ("b",), ("b",))), 2)
    (2, 5)
    >>> choose_spares(Topology.one_switch(4), 1)
    (3,)
    """
    left: dict[Chain, list[int]] = {}
    for node, chain in enumerate(topology.switches):
        left.setdefault(chain, []).append(node)
    number = {chain: place for place, chain in enumerate(left)}
    below: Counter[Chain] = Counter()  # spares below the switch at the end of a chain
    chosen = []

    def order(chain: Chain) -> tuple[bool, tuple[int, ...], int, int]:
        spares = tuple(below[chain[:depth]] for depth in range(len(chain), 0, -1))
        return len(left[chain]) == 1, spares or (below[()],), -len(left[chain]), -number[chain]

    for _ in range(count):
        best = min((chain for chain in left if left[chain]), key=order)
        chosen.append(left[best].pop())
        below.update(best[:depth] for depth in range(1, len(best) + 1) or (0,))
    return tuple(sorted(chosen))
