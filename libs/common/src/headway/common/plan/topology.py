"""Where nodes are in a cluster's network, as the chain of switches above each.

The network is a tree (MegaScale, arXiv 2402.15627, section 3.6): the GPUs of a node share NVLink,
nodes share a leaf switch (top of rack, ToR), and traffic between leaves crosses the spine, which
has several levels in large clusters.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

Chain = tuple[str, ...]
"""Names of the switches above a node, the top one first: ``("spine", "rack7")``."""


class Link(IntEnum):
    """What two ranks communicate over, the nearest first."""

    NVLINK = 0
    """Inside a node."""
    LEAF = 1
    """Between nodes below one leaf switch."""
    SPINE = 2
    """Between leaf switches, whatever the number of levels above them."""


@dataclass(frozen=True)
class Topology:
    """The switches above each node, by node number.

    Nodes with equal chains share their leaf, the last switch of the chain. The empty chain stands
    for a place that is not known: these nodes count as those of one leaf.
    """

    switches: tuple[Chain, ...]

    @classmethod
    def one_switch(cls, num_nodes: int) -> Topology:
        """All nodes below a single switch: the network of which nothing is known."""
        return cls(((),) * num_nodes)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.switches)

    @property
    def digest(self) -> str:
        """A short text that differs for another network, or another order of its nodes."""
        return hashlib.sha256(repr(self.switches).encode()).hexdigest()[:16]

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """The leaf of each node; leaves are numbered in the order of their first node."""
        numbers: dict[Chain, int] = {}
        return tuple(numbers.setdefault(chain, len(numbers)) for chain in self.switches)

    def link(self, node: int, other: int) -> Link:
        """What the ranks of two nodes communicate over."""
        if node == other:
            return Link.NVLINK
        return Link.LEAF if self.leaves[node] == self.leaves[other] else Link.SPINE

    def levels(self, node: int, other: int) -> int:
        """Levels of switches that a message between two nodes climbs above their leaves; 0 if none.

        >>> Topology((("core", "pod0", "a"), ("core", "pod0", "b"))).levels(0, 1)
        1
        """
        chain, far = self.switches[node], self.switches[other]
        shared = 0
        while shared < min(len(chain), len(far)) and chain[shared] == far[shared]:
            shared += 1
        return max(len(chain), len(far)) - shared
