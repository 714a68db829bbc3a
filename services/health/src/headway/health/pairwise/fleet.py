"""Asks peers over their keyed channels for measurements, many at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
)
from headway.health.pairwise.config import PairwiseConfig
from headway.health.pairwise.hosts import Host
from headway.health.pairwise.keys import Keys
from headway.health.pairwise.plan import Node, Pair

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
        """Of the slower direction, bytes per second; 0 if bytes changed on the way."""
        return 0.0 if self.num_damaged else min(self.sent_bytes_per_s, self.received_bytes_per_s)


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

    def _client(self, node: Node) -> Client:
        if self._keys is None:
            return Client(self._endpoints[node])
        keys, server_key = self._keys.coordinator, self._keys.peer.public
        return Client(self._endpoints[node], keys=keys, server_key=server_key)
