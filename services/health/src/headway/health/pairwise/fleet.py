"""Asks peers over their keyed channels for measurements, many at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from headway.common.errors import HeadwayError
from headway.common.wire.client import Client
from headway.common.wire.messages.peer import (
    CpuMeasured,
    LinkMeasured,
    LinkOpened,
    MeasureCpu,
    MeasureLink,
    OpenLink,
    OpenRing,
    RingOpened,
    RingSummed,
    SumRing,
)
from headway.health.checks.base import MIB
from headway.health.pairwise.config import PairwiseConfig
from headway.health.pairwise.hosts import Host
from headway.health.pairwise.keys import Keys
from headway.health.pairwise.plan import Node, Pair
from headway.health.pairwise.ring_plan import edges

K = TypeVar("K")
R = TypeVar("R")


@dataclass(frozen=True)
class CpuResult:
    """One node's arithmetic."""

    products_per_s: float = 0.0
    is_exact: bool = True
    trouble: str = ""
    """Why the node was not measured; empty if it was."""


@dataclass(frozen=True)
class LinkResult:
    """One pair's link."""

    pair: Pair
    sent_bytes_per_s: float = 0.0
    """From the second node to the first."""
    received_bytes_per_s: float = 0.0
    latency_s: float = 0.0
    num_damaged: int = 0
    trouble: str = ""
    """Why it was not measured; then it counts as a link that carries nothing."""

    @property
    def rate(self) -> float:
        """Bytes per second in the slower direction; 0 if bytes changed on the way."""
        return 0.0 if self.num_damaged else min(self.sent_bytes_per_s, self.received_bytes_per_s)


@dataclass(frozen=True)
class Member:
    """One member of a ring, and the edge on which it received."""

    edge: Pair
    """The node that sends on it, and this one."""
    num_bytes: int
    """Size of the array that was summed."""
    has_reached_next: bool = False
    duration_s: float = 0.0
    """Duration of the whole sum; 0.0 if it was not finished."""
    bytes_per_s: float = 0.0
    """At which parts came over the edge; 0.0 if none did."""
    num_damaged: int = 0
    trouble: str = ""
    """Why the sum was not finished; empty if it was."""


MOST_AT_ONCE = 256
"""Pairs have two connections each, and a process has 1,023 sockets of ZeroMQ."""


class Fleet:
    """The peers of some hosts.

    ``parallel`` measurements run at the same time, at most ``MOST_AT_ONCE``.
    """

    def __init__(
        self, hosts: Iterable[Host], keys: Keys | None, config: PairwiseConfig, parallel: int | None
    ) -> None:
        self._endpoints = {host.name: host.endpoint for host in hosts}
        self._keys, self._config, self._parallel = keys, config, parallel

    def measure_cpus(self, nodes: Iterable[Node]) -> dict[Node, CpuResult]:
        """Each node's arithmetic; also finds the nodes that do not answer."""
        return self._all(nodes, self._measure_cpu)

    def measure_links(self, pairs: Iterable[Pair]) -> dict[Pair, LinkResult]:
        """The links of pairs that have no node in common."""
        return self._all(pairs, self._measure_link)

    def open_ring(self, nodes: Iterable[Node]) -> tuple[dict[Node, RingOpened], dict[Node, str]]:
        """Where each node listens for the one before it; and why the others do not."""
        found = self._all(nodes, self._open_ring)
        opened = {node: one for node, one in found.items() if isinstance(one, RingOpened)}
        return opened, {node: one for node, one in found.items() if isinstance(one, str)}

    def sum_ring(self, order: Sequence[Node], opened: Mapping[Node, RingOpened]) -> list[Member]:
        """One sum over the nodes in this order; all of them take part at the same time."""
        size = len(order)

        def take_part(number: int, edge: Pair) -> Member:
            return self._sum_ring(number, size, edge, opened[order[(number + 1) % size]])

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(take_part, range(size), edges(order)))

    def _all(self, keys: Iterable[K], measure: Callable[[K], R]) -> dict[K, R]:
        wanted = list(keys)
        if not wanted:
            return {}
        most = min(self._parallel or MOST_AT_ONCE, MOST_AT_ONCE)
        with ThreadPoolExecutor(min(len(wanted), most)) as pool:
            return dict(zip(wanted, pool.map(measure, wanted), strict=True))

    def _measure_cpu(self, node: Node) -> CpuResult:
        config = self._config
        asked = MeasureCpu(burst_s=config.cpu_burst_s, num_bursts=config.num_bursts)
        try:
            with self._client(node) as client:
                found = client.call(asked, CpuMeasured, timeout_s=config.cpu_s)
        except HeadwayError as error:
            return CpuResult(trouble=str(error))
        return CpuResult(found.products_per_s, found.is_exact)

    def _measure_link(self, pair: Pair) -> LinkResult:
        config = self._config
        try:
            with self._client(pair[0]) as first, self._client(pair[1]) as second:
                asked = OpenLink(num_bursts=config.num_bursts, burst_s=config.burst_s)
                opened = first.call(asked, LinkOpened, timeout_s=config.answer_s)
                found = second.call(
                    MeasureLink(
                        address=opened.address,
                        port=opened.port,
                        token=opened.token,
                        num_bursts=config.num_bursts,
                        burst_s=config.burst_s,
                    ),
                    LinkMeasured,
                    timeout_s=config.link_s + config.answer_s,
                )
        except HeadwayError as error:
            return LinkResult(pair, trouble=str(error))
        return LinkResult(
            pair,
            found.sent_bytes_per_s,
            found.received_bytes_per_s,
            found.latency_s,
            found.num_damaged,
        )

    def _open_ring(self, node: Node) -> RingOpened | str:
        try:
            with self._client(node) as client:
                return client.call(OpenRing(), RingOpened, timeout_s=self._config.answer_s)
        except HeadwayError as error:
            return str(error)

    def _sum_ring(self, number: int, size: int, edge: Pair, after: RingOpened) -> Member:
        config = self._config
        num_bytes = int(config.ring_mib * MIB)
        asked = SumRing(
            number=number,
            size=size,
            address=after.address,
            port=after.port,
            token=after.token,
            num_bytes=num_bytes,
            limit_s=config.ring_s,
        )
        # waiting for the neighbours comes on top of the sum
        limit_s = 2 * config.ring_s + config.answer_s
        try:
            with self._client(edge[1]) as client:
                summed = client.call(asked, RingSummed, timeout_s=limit_s)
        except HeadwayError as error:
            return Member(edge, num_bytes, trouble=str(error))
        return Member(
            edge,
            num_bytes,
            summed.has_reached_next,
            summed.duration_s,
            summed.bytes_per_s,
            summed.num_damaged,
            summed.trouble,
        )

    def _client(self, node: Node) -> Client:
        if self._keys is None:
            return Client(self._endpoints[node])
        keys, server_key = self._keys.coordinator, self._keys.peer.public
        return Client(self._endpoints[node], keys=keys, server_key=server_key)
