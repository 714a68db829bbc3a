"""The monitor of a run: evaluates the beats of all agents, records verdicts, advises the driver."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from headway.common.log import setup
from headway.common.plan.grid import Grid
from headway.common.wire.admission import KeyFile
from headway.common.wire.keys import KeyPair
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import MonitorBeat
from headway.common.wire.messages.health import AgentBeat
from headway.common.wire.messages.summaries import StepSummary
from headway.common.wire.metrics import Metric, Metrics
from headway.common.wire.server import Server
from headway.common.wire.service import Beat, Service
from headway.health.announce import Address, announce, keep_announced
from headway.health.config import EventsConfig, HealthConfig
from headway.health.reporter import Reporter
from headway.health.rule_files import rules_of
from headway.health.slow_thread import SlowThread
from headway.health.slowness.live import LiveJudgement
from headway.health.state import MonitorState
from headway.health.store.summary_log import SummaryLog

SUMMARY_WAIT_S = 4.0
"""How long the end of a monitor waits for the last summaries of steps to be written."""
SHOW_S = 1.0
"""How often the monitor sends its address to the driver."""


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """Settings of a monitor."""

    bind: str
    keys: Path
    """Folder with ``monitor.key``, which the monitor uses as server and towards the driver, and
    ``agent.key``, the only key that may send beats."""
    run_dir: Path
    run_id: str
    node: int = 0
    """Node that it runs on; the driver accepts the monitor of its own node."""
    announce: Path | None = None
    """File for the address, for agents of a run without a driver."""
    executor: str | None = None
    metrics_port: int | None = None
    grid: Grid | None = None
    """Which ranks do the same work; None if that is not known."""
    summaries: Path | None = None
    """Folder where summaries of steps are saved; if None they are judged, and not kept."""
    keep_gib: float = EventsConfig.keep_gib
    """Disk space for them."""


def run_monitor(options: MonitorOptions, config: HealthConfig) -> int:
    """Serves until SIGTERM; returns the exit code.

    Raises:
        InputError: the address is in use, or run folder or keys cannot be used.
    """
    setup("monitor", run_id=options.run_id, node=options.node)
    keys = KeyPair.load_or_make(options.keys / "monitor.key")
    own_agent = KeyPair.load_or_make(options.keys / "agent.key").public
    others = KeyFile(options.keys / "agents.allowed")  # of other machines; the driver writes it

    def admits(key: bytes) -> bool:
        return key == own_agent or others(key)

    with contextlib.ExitStack() as stack:
        monitor = Monitor(options, config, keys)
        stack.callback(monitor.close)
        handlers: dict[type[Message], Any] = {
            AgentBeat: monitor.on_beat,
            StepSummary: monitor.on_steps,
        }
        if options.summaries is not None:
            verdicts = options.run_dir / "verdicts.jsonl"
            keep_bytes = EventsConfig(options.keep_gib).keep_bytes
            log = SummaryLog(options.summaries, options.run_id, keep_bytes, verdicts)
            log.start()
            stack.callback(log.close, SUMMARY_WAIT_S)
            monitor.keep_steps(log)
        server = Server(options.bind, handlers, keys=keys, allowed=admits)
        stack.callback(server.close)
        service = Service(
            "monitor",
            server,
            beat=Beat(endpoint=options.executor, progress=lambda: monitor.num_ticks)
            if options.executor
            else None,
            metrics_port=options.metrics_port,
            describe=monitor.describe,
            run_id=options.run_id,
        )
        service.metrics.register(monitor.metrics())
        monitor.serve(service, server.endpoint)
        return service.run()


class Monitor:
    """Connects the pure state and the reporter to a service's loop."""

    def __init__(self, options: MonitorOptions, config: HealthConfig, keys: KeyPair) -> None:
        self._options, self._config, self._keys = options, config, keys
        self._service: Service | None = None
        self._reporter = Reporter(
            options.run_dir,
            keys,
            watch=self._watch,
            unwatch=self._unwatch,
            notify=config.notify,
            notify_from=config.notify_from,
        )
        self._state = MonitorState(config, options.run_id, options.node, rules_of(config.rules)[0])
        self._state.restore(self._reporter.earlier)
        self._open_by_kind: Counter[str] = Counter()
        self._steps: SummaryLog | None = None
        self._slow = SlowThread(options.grid, config, self._on_judged)
        self.num_ticks = 0

    def serve(self, service: Service, endpoint: str) -> None:
        """Register in the loop of ``service``, which listens on ``endpoint``.

        Raises:
            InputError: the file to announce in cannot be written.
        """
        self._service = service
        service.watch(self._slow.done_fd, self._slow.run_callbacks)
        address = Address(endpoint, self._keys.public.decode())
        if self._options.announce is not None:
            announce(self._options.announce, address)
        service.every(self._config.beat_interval_s, self._tick)
        service.every(SHOW_S, lambda: self._show(address))

    def on_beat(self, beat: AgentBeat, _peer: bytes) -> None:
        now_s = time.monotonic()
        self._reporter.report(self._state.on_beat(beat, now_s), now_s)

    def keep_steps(self, log: SummaryLog) -> None:
        """Have the summaries of steps saved as well."""
        self._steps = log

    def on_steps(self, summary: StepSummary, _peer: bytes) -> None:
        if summary.run_id != self._options.run_id:
            return
        self._slow.add(summary)
        if self._steps is not None:
            self._steps.add(summary)

    def describe(self) -> dict[str, Any]:
        """Values for ``Description.state``."""
        return {
            "pid": os.getpid(),
            "num_nodes": len(self._state.nodes),
            "num_ranks": len(self._state.ranks),
            "num_open_verdicts": len(self._state.open_verdicts()),
            "generation": self._state.generation,
        }

    def metrics(self) -> Metrics:
        """What the monitor exports, as of its newest tick."""

        def metric(name: str, text: str, read: Callable[[], float]) -> Metric:
            return Metric(f"headway_monitor_{name}", text, read)

        return Metrics(
            metric("nodes", "Nodes whose agents report", lambda: len(self._state.nodes)),
            metric("ranks", "Ranks that agents report", lambda: len(self._state.ranks)),
            metric(
                "undelivered_verdicts",
                "Verdicts that web addresses did not take in time, or refused",
                lambda: self._reporter.notifier.num_dropped,
            ),
            Metric(
                "headway_monitor_open_verdicts",
                "Open verdicts by kind",
                lambda: self._open_by_kind,
                label="kind",
            ),
        )

    def close(self) -> None:
        if self._service is not None:
            self._service.unwatch(self._slow.done_fd)
        self._slow.close()
        self._reporter.close()

    def _tick(self) -> None:
        now_s = time.monotonic()
        self._reporter.follow_driver(now_s)
        self._reporter.report(self._state.tick(now_s), now_s)
        self._open_by_kind = Counter(one.kind for one in self._state.open_verdicts())
        self.num_ticks += 1

    def _show(self, address: Address) -> None:
        options = self._options
        self._reporter.show(
            MonitorBeat(
                run_id=options.run_id,
                node=options.node,
                pid=os.getpid(),
                endpoint=address.endpoint,
                server_key=address.server_key,
            )
        )
        if options.announce is not None:
            keep_announced(options.announce, address)

    def _on_judged(self, judged: LiveJudgement) -> None:
        now_s = time.monotonic()
        self._reporter.report(self._state.on_judged(judged, now_s), now_s)

    def _receive(self) -> None:
        now_s = time.monotonic()
        for answer in self._reporter.receive():
            self._reporter.report(self._state.on_taken(answer, now_s), now_s)

    def _watch(self, opened: zmq.Socket[Any]) -> None:
        assert self._service is not None
        self._service.watch(opened, self._receive)

    def _unwatch(self, closing: zmq.Socket[Any]) -> None:
        if self._service is not None:
            self._service.unwatch(closing)
