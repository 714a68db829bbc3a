"""Which node carries which rank: consecutive ranks share a node.

So a tensor-parallel group is always inside a node whose number of ranks is a multiple of tp.
``plan.nearest`` chooses the node of each block of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.common.errors import ConfigError
from headway.common.plan.grid import Grid
from headway.common.plan.topology import Topology


@dataclass(frozen=True, slots=True)
class Placement:
    """Ranks ``[b * ranks_per_node, (b + 1) * ranks_per_node)`` on node ``nodes[b]``.

    Raises:
        ConfigError: the world size is not a multiple of ``ranks_per_node``, or ``nodes`` are not as
            many different ones as that needs.
    """

    grid: Grid
    ranks_per_node: int
    nodes: tuple[int, ...] = ()
    """The node of each block of ranks; empty means block b on node b."""

    def __post_init__(self) -> None:
        if self.ranks_per_node < 1 or self.grid.world_size % self.ranks_per_node:
            raise ConfigError(
                f"{self.grid.world_size} ranks do not fill nodes of {self.ranks_per_node}",
                remedy="choose a divisor of tp x pp x dp",
            )
        if self.nodes and not self.num_nodes == len(self.nodes) == len(set(self.nodes)):
            raise ConfigError(
                f"{len(set(self.nodes))} nodes of {len(self.nodes)} for {self.num_nodes} blocks",
                remedy="name one node for each block of ranks",
            )

    @property
    def num_nodes(self) -> int:
        """Nodes that carry ranks."""
        return self.grid.world_size // self.ranks_per_node

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        self.grid.coordinates(rank)
        block = rank // self.ranks_per_node
        return self.nodes[block] if self.nodes else block

    def local_rank(self, rank: int) -> int:
        """The rank's number on its node."""
        self.grid.coordinates(rank)
        return rank % self.ranks_per_node

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """The ranks of a node."""
        carriers = self.nodes or range(self.num_nodes)
        if node not in carriers:
            raise ConfigError(
                f"node {node} is outside {self.num_nodes} nodes", remedy="count from 0"
            )
        first = carriers.index(node) * self.ranks_per_node
        return tuple(range(first, first + self.ranks_per_node))

    def node_by_rank(self) -> list[int]:
        """The node of each rank, rank 0 first."""
        carriers = self.nodes or range(self.num_nodes)
        return [node for node in carriers for _ in range(self.ranks_per_node)]


def check_known(placement: Placement, topology: Topology) -> None:
    """Raises ConfigError if a rank is on a node that the topology does not have."""
    highest = max(placement.nodes, default=placement.num_nodes - 1)
    if highest >= topology.num_nodes:
        raise ConfigError(
            f"node {highest} is not in a topology of {topology.num_nodes} nodes",
            remedy="give the chain of switches of every node that carries ranks",
        )
