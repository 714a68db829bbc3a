"""Which loopback port each service of a run serves its Prometheus metrics on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headway.common.errors import ConfigError

RUN_SERVICES = ("driver", "monitor")
"""One of each per run, on whichever node leads: their ports belong to the run."""
NODE_SERVICES = ("executor", "dataloader", "ckpt_store", "agent")
"""One of each per node."""
LOWEST, HIGHEST = 1024, 65535


@dataclass(frozen=True)
class MetricsPorts:
    """``first`` and the ports after it, for ``nodes`` nodes on one machine, spares included.

    >>> ports = MetricsPorts(9400, 2)
    >>> ports.of("driver"), ports.of("monitor"), ports.of("executor", 1), ports.last
    (9400, 9401, 9406, 9409)
    """

    first: int
    nodes: int

    def of(self, service: str, node: int = 0) -> int:
        """The port of a service; ``node`` does not matter for the driver and the monitor."""
        if service in RUN_SERVICES:
            return self.first + RUN_SERVICES.index(service)
        place = node * len(NODE_SERVICES) + NODE_SERVICES.index(service)
        return self.first + len(RUN_SERVICES) + place

    @property
    def last(self) -> int:
        """The highest port in use."""
        return self.of(NODE_SERVICES[-1], self.nodes - 1)

    def __iter__(self) -> Iterator[tuple[int, str, int | None]]:
        """Every (port, service, node), by port; the node is None for the driver and the monitor."""
        for service in RUN_SERVICES:
            yield self.of(service), service, None
        for node in range(self.nodes):
            for service in NODE_SERVICES:
                yield self.of(service, node), service, node

    def check(self) -> None:
        """Raises ConfigError where the ports leave the range that a user may bind."""
        if self.first < LOWEST:
            raise ConfigError(
                f"launch.metrics_port={self.first} is below {LOWEST}",
                remedy=f"use {LOWEST} or more, or 0 for no metrics",
            )
        if self.last > HIGHEST:
            highest = HIGHEST - (self.last - self.first)
            raise ConfigError(
                f"launch.metrics_port={self.first} and {self.nodes} nodes need the ports up to "
                f"{self.last}, above {HIGHEST}",
                remedy=f"use {highest} or less"
                if highest >= LOWEST
                else "use fewer nodes, or 0 for no metrics",
            )
