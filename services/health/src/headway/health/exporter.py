"""Prometheus metrics of a node: the newest beat of its agent, read at scrape time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from headway.common.wire.messages.health import AgentBeat, WorkerSignals
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_RANK_GAUGES: Final = {
    "generation": ("generation", "Generation of the rank's flight ring"),
    "flight_records": ("head", "Flight records begun by the rank"),
    "step": ("step", "Last finished optimizer step"),
    "step_seconds": ("step_s", "Duration of the last finished step"),
    "unchanged_seconds": ("age_s", "Time since the rank's flight ring last changed"),
    "resident_bytes": ("rss_bytes", "Resident memory"),
    "proportional_bytes": ("pss_bytes", "Proportional memory share"),
    "threads": ("num_threads", "Threads"),
    "open_files": ("num_fds", "Open file descriptors"),
    "cpu_cores": ("cpu_fraction", "Cores in use"),
}
"""Name -> field of a beat's worker, and its line of help."""
_OF_ALL_RANKS: Final[dict[str, tuple[str, Callable[[Sequence[float]], float], str]]] = {
    "slowest_step_seconds": ("step_s", max, "Duration of the last step of the slowest rank"),
    "longest_unchanged_seconds": ("age_s", max, "Time since the flight ring of a rank changed"),
    "proportional_bytes": ("pss_bytes", sum, "Memory of all ranks, shared pages counted once"),
    "threads": ("num_threads", sum, "Threads of all ranks"),
    "cpu_cores": ("cpu_fraction", sum, "Cores in use by all ranks"),
}
"""Name -> field of a beat's worker, how the ranks of a node add up, and its line of help."""
_HOST_GAUGES: Final = {
    "load1": ("load_1m", "Load average over one minute"),
    "memory_size_bytes": ("memory_total_bytes", "Memory of the node"),
    "memory_available_bytes": ("memory_available_bytes", "Memory available without swapping"),
    "disk_free_bytes": ("disk_free_bytes", "Free space where the logs are, -1 unknown"),
    "shm_free_bytes": ("shm_free_bytes", "Free shared memory, -1 unknown"),
}


class BeatCollector(Collector):
    """Gauges ``headway_node_*`` and, over all ranks of the node, ``headway_node_ranks_*``.

    Nothing before the first beat. There is no label ``node``: the target that is scraped has it.
    ``per_rank`` adds ``headway_rank_*{rank}``, which is a series per
    rank and figure: too many for a large run.
    """

    def __init__(self, newest: Callable[[], AgentBeat | None], per_rank: bool = False) -> None:
        self._newest, self._per_rank = newest, per_rank

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The gauges of the newest beat."""
        beat = self._newest()
        if beat is None:
            return
        for name, (key, text) in _HOST_GAUGES.items():
            yield _gauge(f"headway_node_{name}", text, float(getattr(beat.host, key)))
        yield _gauge("headway_node_ranks", "Ranks on the node", len(beat.workers))
        for name, (key, add_up, text) in _OF_ALL_RANKS.items():
            if beat.workers:
                value = add_up([float(getattr(worker, key)) for worker in beat.workers])
                yield _gauge(f"headway_node_ranks_{name}", text, value)
        pressure = GaugeMetricFamily(
            "headway_node_pressure_ratio",
            "Share of the last 10 s in which tasks waited, 0..1",
            labels=["resource"],
        )
        for resource, fraction in beat.host.pressure.items():
            pressure.add_metric([resource], fraction)
        yield pressure
        if self._per_rank:
            yield from _of_ranks(beat.workers)


def _of_ranks(workers: Sequence[WorkerSignals]) -> Iterable[GaugeMetricFamily]:
    for name, (key, text) in _RANK_GAUGES.items():
        family = GaugeMetricFamily(f"headway_rank_{name}", text, labels=["rank"])
        for worker in workers:
            family.add_metric([str(worker.rank)], float(getattr(worker, key)))
        yield family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family
