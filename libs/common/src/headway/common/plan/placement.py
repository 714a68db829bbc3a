"""Which node carries which rank: consecutive ranks share a node.

Tensor-parallel groups should share a node.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.common.errors import ConfigError
from headway.common.plan.grid import Grid


@dataclass(frozen=True, slots=True)
class Placement:
    """Ranks ``[n * ranks_per_node, (n + 1) * ranks_per_node)`` on node ``n``.

    Raises:
        ConfigError: the world size is not a multiple of ``ranks_per_node``.
    """

    grid: Grid
    ranks_per_node: int

    def __post_init__(self) -> None:
        if self.ranks_per_node < 1 or self.grid.world_size % self.ranks_per_node:
            raise ConfigError(
                f"{self.grid.world_size} ranks do not fill nodes of {self.ranks_per_node}",
                remedy="choose a divisor of tp x pp x dp",
            )

    @property
    def num_nodes(self) -> int:
        """Nodes that carry ranks."""
        return self.grid.world_size // self.ranks_per_node

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        self.grid.coordinates(rank)
        return rank // self.ranks_per_node

    def local_rank(self, rank: int) -> int:
        """The rank's number on its node."""
        return rank - self.node_of(rank) * self.ranks_per_node

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """The ranks of a node."""
        if not 0 <= node < self.num_nodes:
            raise ConfigError(
                f"node {node} is outside {self.num_nodes} nodes", remedy="count from 0"
            )
        return tuple(range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node))
