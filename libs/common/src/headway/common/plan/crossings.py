"""Counts the neighbours in data-parallel rings whose nodes are below different leaf switches."""

from __future__ import annotations

from collections.abc import Mapping

from headway.common.plan.grid import Grid
from headway.common.plan.topology import Link, Topology


def dp_pairs(grid: Grid, rank_nodes: Mapping[int, int], topology: Topology) -> tuple[int, int]:
    """How many pairs cross leaf switches, and how many pairs there are.

    A ring of two ranks is one pair; without replicas there are none.

    >>> dp_pairs(Grid(dp=3), {0: 0, 1: 1, 2: 2}, Topology((("a",), ("a",), ("b",))))
    (2, 3)
    """
    size, stride = grid.dp, grid.stride("dp")
    crossing = total = 0
    for rank in range(grid.world_size if size > 1 else 0):
        place = rank // stride % size
        if place == size - 1 and size == 2:
            continue  # the pair of the first
        following = rank - place * stride if place == size - 1 else rank + stride
        total += 1
        crossing += topology.link(rank_nodes[rank], rank_nodes[following]) is Link.SPINE
    return crossing, total
