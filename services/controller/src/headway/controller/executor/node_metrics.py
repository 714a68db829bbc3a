"""What an executor exports for Prometheus: what runs on its node, and how often it had to restart.

There is no series per worker; the node is a label of the scraped target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headway.common.wire.metrics import Metric, Metrics
from headway.controller.executor.node_run import NodeRun


def node_metrics(carried: Callable[[], NodeRun | None]) -> Metrics:
    """The figures of the run that the node carries now; none of them while it carries none.

    They are read in the exporter's thread, so each read copies what it looks at.
    """

    def up() -> dict[str, float] | None:
        run = carried()
        kept = dict(run.guardian.services.kept) if run is not None else {}
        return {name: float(service.status == "up") for name, service in kept.items()} or None

    def restarts() -> dict[str, float] | None:
        run = carried()
        kept = dict(run.guardian.services.kept) if run is not None else {}
        return {name: float(service.restarts) for name, service in kept.items()} or None

    def workers() -> dict[str, float] | None:
        run = carried()
        if run is None:
            return None
        members = dict(run.guardian.workers.members)
        return dict(Counter("rank" if m.beat.rank >= 0 else "standby" for m in members.values()))

    return Metrics(
        Metric("headway_executor_service_up", "1 while the service runs", up, "name"),
        Metric(
            "headway_executor_service_restarts",
            "Restarts of the service by this executor",
            restarts,
            "name",
            is_counter=True,
        ),
        Metric("headway_executor_workers", "Worker processes by role", workers, "role"),
    )
