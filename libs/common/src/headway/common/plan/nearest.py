"""Chooses the node of each block of ranks, so that few bytes cross the spine.

``plan.spares`` says which nodes carry none.

Objective: the bytes per step between nodes below different leaf switches. Among equals, those with
the fewest bytes times levels of switches above the leaves; then consecutive ranks on consecutive
nodes; then the lowest bands. Finding the minimum is graph partitioning, which is NP-hard (Garey,
Johnson and Stockmeyer, Theor. Comput. Sci. 1 (1976)), so a few regular layouts are compared. The
layout of consecutive ranks is one of them: no result is worse.

The blocks of a run form a table: a row for each stage, with the blocks of its dp rings in ring
order, and pipelines from row to row. A layout cuts the table into bands of rows, goes through each
band column by column, and fills one leaf after the other on the way. Bands of one row keep dp rings
below a leaf, a band of all rows keeps pipelines there, and bands in between make tiles, in which
stages are side by side. Leaves come in the order of the tree, so that those below one switch are
filled together; equal ones by size or by first node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from headway.common.plan.grid import Grid
from headway.common.plan.placement import Placement, check_known
from headway.common.plan.spares import choose_spares
from headway.common.plan.topology import Chain, Topology
from headway.common.plan.traffic import Traffic

Pairs = dict[tuple[int, int], int]
"""Bytes per step between two blocks of ranks, in both directions together."""


def place(traffic: Traffic, ranks_per_node: int, topology: Topology) -> Placement:
    """The placement of ``traffic.grid`` on nodes of ``topology``; those left over are spares.

    Deterministic. Takes 0.2 s of CPU for 12,288 ranks on 1,536 nodes.

    Raises:
        ConfigError: nodes of so many ranks are not filled, or there are too few of them.
    """
    grid = traffic.grid
    consecutive = Placement(grid, ranks_per_node)
    check_known(consecutive, topology)
    spares = set(choose_spares(topology, topology.num_nodes - consecutive.num_nodes))
    carriers = tuple(node for node in range(topology.num_nodes) if node not in spares)
    if carriers != tuple(range(consecutive.num_nodes)):
        consecutive = Placement(grid, ranks_per_node, carriers)
    if len({topology.leaves[node] for node in carriers}) == 1:
        return consecutive
    pairs = _between_blocks(traffic, ranks_per_node)
    layouts = [carriers, *_layouts(grid, ranks_per_node, _nodes_below(topology, carriers))]
    spine = [_spine_bytes(pairs, nodes, topology) for nodes in layouts]
    least = min(spine)
    best = [nodes for nodes, nbytes in zip(layouts, spine, strict=True) if nbytes == least]
    return Placement(grid, ranks_per_node, min(best, key=lambda n: _climbed(pairs, n, topology)))


def _between_blocks(traffic: Traffic, ranks_per_node: int) -> Pairs:
    found: Counter[tuple[int, int]] = Counter()
    for _, sender, receiver, nbytes in traffic.messages():
        one, other = sender // ranks_per_node, receiver // ranks_per_node
        if one != other:
            found[(one, other) if one < other else (other, one)] += nbytes
    return dict(found)


def _spine_bytes(pairs: Pairs, nodes: Sequence[int], topology: Topology) -> int:
    leaf = [topology.leaves[node] for node in nodes]
    return sum(nbytes for (one, other), nbytes in pairs.items() if leaf[one] != leaf[other])


def _climbed(pairs: Pairs, nodes: Sequence[int], topology: Topology) -> int:
    """Bytes times the levels of switches that they climb above their leaves."""
    return sum(
        nbytes * topology.levels(nodes[one], nodes[other]) for (one, other), nbytes in pairs.items()
    )


def _layouts(
    grid: Grid, ranks_per_node: int, below: dict[Chain, list[int]]
) -> Iterator[tuple[int, ...]]:
    """The node of each block, for every height of a band and order of the leaves."""
    num_nodes = grid.world_size // ranks_per_node
    width, rest = divmod(grid.world_size // grid.pp, ranks_per_node)
    height = grid.pp if width and not rest else 1  # else nodes have several stages, or parts
    largest = max(map(len, below.values()))
    heights = [*range(1, min(height, largest + 1)), height]
    for order in dict.fromkeys(_orders(below)):
        filled = list(chain.from_iterable(below[leaf] for leaf in order))
        for band in heights:
            nodes = [0] * num_nodes
            for block, node in zip(_walk(num_nodes // height, height, band), filled, strict=True):
                nodes[block] = node
            yield tuple(nodes)


def _walk(width: int, height: int, band: int) -> Iterator[int]:
    """The blocks of a table in bands of ``band`` rows, column by column.

    >>> list(_walk(3, 2, 2))
    [0, 3, 1, 4, 2, 5]
    """
    for first in range(0, height, band):
        for column in range(width):
            for row in range(first, min(first + band, height)):
                yield row * width + column


def _nodes_below(topology: Topology, carriers: Sequence[int]) -> dict[Chain, list[int]]:
    """The nodes that carry ranks by their leaf, which its chain of switches names."""
    below: dict[Chain, list[int]] = {}
    for node in carriers:
        below.setdefault(topology.switches[node], []).append(node)
    return below


def _orders(below: dict[Chain, list[int]]) -> Iterator[tuple[Chain, ...]]:
    """The leaves in the order of the tree; at each switch by first node, or by size and that."""
    size: Counter[Chain] = Counter()
    first: dict[Chain, int] = {}
    for leaf, nodes in below.items():
        for depth in range(len(leaf) + 1):
            size[leaf[:depth]] += len(nodes)
            first.setdefault(leaf[:depth], nodes[0])
    for sign in (0, -1, 1):

        def place_in_tree(leaf: Chain, sign: int = sign) -> list[tuple[int, int]]:
            above = [leaf[:depth] for depth in range(1, len(leaf) + 1)]
            return [(sign * size[switch], first[switch]) for switch in above]

        yield tuple(sorted(below, key=place_in_tree))
