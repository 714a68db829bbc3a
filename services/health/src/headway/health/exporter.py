"""Prometheus metrics of a node: the newest beat of its agent, read at scrape time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headway.common.wire.messages.health import AgentBeat
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_WORKER_GAUGES: Final = {
    "generation": "Generation of the rank's flight ring",
    "head": "Flight records begun by the rank",
    "step": "Last finished optimizer step",
    "step_s": "Duration of the last finished step in seconds",
    "age_s": "Seconds since the rank's flight ring last changed",
    "rss_bytes": "Resident memory",
    "pss_bytes": "Proportional memory share",
    "num_threads": "Threads",
    "num_fds": "Open file descriptors",
    "cpu_fraction": "Cores in use",
}
_HOST_GAUGES: Final = {
    "load_1m": "Load average over one minute",
    "memory_total_bytes": "Memory of the node",
    "memory_available_bytes": "Memory available without swapping",
    "disk_free_bytes": "Free space where the logs are, -1 unknown",
    "shm_free_bytes": "Free shared memory, -1 unknown",
}


class BeatCollector(Collector):
    """Gauges ``headway_worker_*{node,rank}`` and ``headway_node_*{node}``; nothing
    before the first beat."""

    def __init__(self, newest: Callable[[], AgentBeat | None]) -> None:
        self._newest = newest

    def collect(self) -> Iterable[GaugeMetricFamily]:
        beat = self._newest()
        if beat is None:
            return
        node = str(beat.node)
        for name, text in _WORKER_GAUGES.items():
            family = GaugeMetricFamily(f"headway_worker_{name}", text, labels=["node", "rank"])
            for worker in beat.workers:
                family.add_metric([node, str(worker.rank)], float(getattr(worker, name)))
            yield family
        for name, text in _HOST_GAUGES.items():
            family = GaugeMetricFamily(f"headway_node_{name}", text, labels=["node"])
            family.add_metric([node], float(getattr(beat.host, name)))
            yield family
        pressure = GaugeMetricFamily(
            "headway_node_pressure",
            "Share of the last 10 s in which tasks waited, 0..1",
            labels=["node", "resource"],
        )
        for resource, fraction in beat.host.pressure.items():
            pressure.add_metric([node, resource], fraction)
        yield pressure
