"""What the driver exports for Prometheus, and where the run's services can be scraped.

The figures are put together in the driver's loop once a second, and the exporter's thread only
reads the newest. There is no series per rank or per worker.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headway.common.log import get_logger
from headway.common.node.files import replace_json
from headway.common.node.run_dir import RunDir
from headway.common.wire.messages.executor import StepMetrics
from headway.common.wire.metrics import Metric, Metrics
from headway.common.wire.service import Service
from headway.common.wire.side_thread import ThreadPerKind
from headway.controller.decisions.state import PHASES, RunState
from headway.controller.journal.reports import Reports
from headway.trainer.config import LaunchConfig, MetricsPorts

REFRESH_S = 1.0
"""How often the exported figures are put together."""
TARGETS_AGAIN_S = 5.0
"""Pause before the file of targets, which could not be written, is tried again."""
OUTCOMES = ("finished", "stopped", "failed")
_FOUND_ALIVE = ("adopted", "fence", "generation")
"""First words of a new driver; ``generation`` comes first when there were no ranks to take over."""

log = get_logger("driver")


class Recoveries:
    """Counts the recoveries of a run, fed the names of its events in order.

    A recovery lasts from a fence until all ranks step again; what a stop or the end of everything
    cut short does not count.
    """

    def __init__(self, events: Iterable[str] = ()) -> None:
        self.number = 0
        self._is_open = self._is_new_driver = False
        for name in events:
            self.feed(name)

    def feed(self, name: str) -> None:
        """Take in the next event."""
        if name == "run_over" or (name == "generation" and self._is_new_driver):
            self._is_open = False
        self._is_new_driver = name == "driver_started" or (
            self._is_new_driver and name not in _FOUND_ALIVE
        )
        if name == "fence":
            self._is_open = True
        elif name == "stepping":
            self.number += self._is_open
            self._is_open = False


class RunMetrics:
    """The figures of a run as its driver sees them.

    Args:
        run: its folder.
        launch: its table of that name; without a metrics port nothing is exported.
        home: the driver's node.
        events: the names of what the journal holds so far, in order.
    """

    def __init__(
        self, run: RunDir, launch: LaunchConfig, home: int, events: Iterable[str] = ()
    ) -> None:
        self._run, self._ports, self._home = run, launch.metrics_ports, home
        self._recoveries = Recoveries(events)
        self._full_tokens_per_s: float | None = None
        self._now: Mapping[str, Any] = {}

    def feed(self, event: str) -> None:
        """Take in the name of what has just happened."""
        self._recoveries.feed(event)

    def serve(
        self,
        service: Service,
        background: ThreadPerKind,
        state: RunState,
        reports: Reports,
        outcome: Callable[[], str],
    ) -> None:
        """Export the figures and keep the file of targets, if the run has metrics ports.

        A port in use or a full disk is logged and tried again; neither stops the driver.
        """
        if self._ports is None:
            return
        self._full_tokens_per_s = full_tokens_per_s(self._run)
        service.metrics.register(self.metrics())
        service.every(REFRESH_S, lambda: self.refresh(state, reports, outcome()))
        service.serve_metrics(self._ports.of("driver"))
        _keep_targets(self._run, self._ports, self._home, service, background)

    def refresh(self, state: RunState, reports: Reports, outcome: str) -> None:
        """Put the figures together as they are now."""
        phase = outcome or state.phase
        phases = (*(name for name in PHASES if name != "over"), *OUTCOMES)
        self._now = {
            "step": state.step,
            "target_steps": state.steps,
            "generation": state.generation,
            "driver_epoch": state.epoch,
            "paused": int(state.paused),
            "recoveries": self._recoveries.number,
            "skipped_steps": reports.num_skipped,
            "phase": {name: int(name == phase) for name in phases},
            "ranks": dict(state.members.statuses),
            "rank_memory_bytes": _most_memory(state),
            "nodes": Counter(state.status_of(node) for node in state.nodes),
            **self._measured(list(reports.newest)),
        }

    def _measured(self, steps: list[StepMetrics]) -> dict[str, float]:
        if not steps:
            return {}
        last, spent_s = steps[-1], sum(step.duration_s for step in steps)
        rate = sum(step.tokens for step in steps) / spent_s if spent_s > 0 else 0.0
        found = {
            "loss_nats": last.loss,
            "gradient_norm": last.grad_norm,
            "learning_rate": last.lr,
            "step_duration_seconds": last.duration_s,
            "tokens_per_second": rate,
        }
        full = self._full_tokens_per_s
        return found if full is None else {**found, "mfu_ratio": rate / full}

    def metrics(self) -> Metrics:
        """Every figure; what is not known yet is left out."""

        def metric(name: str, text: str, label: str = "", *, is_counter: bool = False) -> Metric:
            return Metric(
                f"headway_run_{name}", text, lambda: self._now.get(name), label, is_counter
            )

        return Metrics(
            metric("step", "Completed optimizer steps"),
            metric("target_steps", "Optimizer steps of the whole run"),
            metric("generation", "Generation of the workers, -1 before the first"),
            metric("driver_epoch", "Number of the driver that leads the run"),
            metric("paused", "1 while the ranks wait on request"),
            metric("recoveries", "Recoveries after which all ranks step again", is_counter=True),
            metric("skipped_steps", "Steps skipped: not finite, or spikes", is_counter=True),
            metric("phase", "1 for the phase or outcome of the run", "phase"),
            metric("ranks", "Ranks by status", "status"),
            metric("nodes", "Nodes by state", "state"),
            metric("rank_memory_bytes", "Peak memory of the rank that uses most", "source"),
            metric("loss_nats", "Training loss per token, newest step"),
            metric("gradient_norm", "Gradient norm before clipping, newest step"),
            metric("learning_rate", "Learning rate, newest step"),
            metric("step_duration_seconds", "Duration of the newest step"),
            metric("tokens_per_second", "Training rate over the newest steps"),
            metric("mfu_ratio", "Model FLOPs utilisation, 0..1"),
        )


def _most_memory(state: RunState) -> dict[str, int]:
    """Measured and predicted peak of the rank that uses most; empty before its first steps."""
    beats = (state.worker(worker) for worker in state.members.workers.values())
    known = [beat for beat in beats if beat is not None and beat.memory_bytes]
    if not known:
        return {}
    most = max(known, key=lambda beat: beat.memory_bytes)
    return {"measured": most.memory_bytes, "predicted": most.memory_predicted}


def full_tokens_per_s(run: RunDir) -> float | None:
    """The rate at which this run's MFU would be 1, as its launch has found it."""
    try:
        value = json.loads(run.run_json.read_text()).get("full_tokens_per_s")
    except (OSError, ValueError):
        return None
    return float(value) if isinstance(value, int | float) and value > 0 else None


def targets(name: str, ports: MetricsPorts, home: int) -> list[dict[str, Any]]:
    """For Prometheus's ``file_sd_configs``; ``home`` is the node of driver and monitor."""
    return [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {
                "run": name,
                "node": str(home if node is None else node),
                "service": service,
            },
        }
        for port, service, node in ports
    ]


def _keep_targets(
    run: RunDir, ports: MetricsPorts, home: int, service: Service, background: ThreadPerKind
) -> None:
    """Write ``metrics_targets.json`` into the run's folder; where that fails, again later."""

    def write() -> None:
        replace_json(run.metrics_targets, targets(run.name, ports, home))

    def then(_result: object, error: Exception | None) -> None:
        if error is not None:
            log.warning("the targets for Prometheus are not written", reason=str(error))
            service.after(TARGETS_AGAIN_S, begin)

    def begin() -> None:
        background.submit("write the targets for Prometheus", write, then)

    begin()
