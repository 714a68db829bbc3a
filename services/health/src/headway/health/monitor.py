"""One per run: hears all agents, judges, writes verdicts down and tells the driver. It never acts itself."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import structlog
from headway.common.log import setup
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.health import AgentBeat, Verdict
from headway.common.wire.server import Server
from headway.common.wire.service import Beat, Service
from headway.health.announce import Address, FollowedPeer, announce
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import revise
from headway.health.journal import VerdictFile, read_verdicts
from headway.health.state import MonitorState

MAX_WAITING_VERDICTS = 256
"""Verdicts wait for a driver that is being replaced; all open ones are told again to a new one anyway."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """What a monitor is started with."""

    bind: str
    keys: Path
    """Folder with ``cluster.key``, which is made when it is not there. The monitor serves with it
    and shows it to the driver, which may admit no other."""
    run_dir: Path
    run_id: str
    announce: Path
    """File that gets the monitor's address, for the executors to pass on."""
    executor: str | None = None


class Reporter:
    """Writes verdicts to the run folder and sends them to whoever is the driver now."""

    def __init__(self, run_dir: Path, keys: KeyPair) -> None:
        path = run_dir / "verdicts.jsonl"
        self.earlier = read_verdicts(path)
        """What was in the file when the monitor started."""
        self._newest = {verdict.id: verdict for verdict in self.earlier}
        self._file = VerdictFile(path)
        self._driver = FollowedPeer(run_dir / "driver.json", MAX_WAITING_VERDICTS, keys)

    def follow_driver(self) -> None:
        """Looks for a new driver and tells it what stands."""
        if self._driver.refresh():
            for verdict in self._newest.values():
                if verdict.is_open:
                    self._driver.notify(verdict)

    def report(self, verdicts: list[Verdict]) -> None:
        """Tells of new or revised verdicts. The driver comes first: a full disk must not delay a recovery."""
        for verdict in verdicts:
            stamped = revise(verdict, unix_s=time.time())
            self._newest[stamped.id] = stamped
            self._driver.notify(stamped)
            try:
                self._file.append(stamped)
            except OSError as error:
                _log.error("verdict not written", id=verdict.id, reason=error.strerror)
            _log.warning("verdict", id=verdict.id, kind=verdict.kind, is_open=verdict.is_open)

    def close(self) -> None:
        self._file.close()
        self._driver.close()


def run_monitor(options: MonitorOptions, config: HealthConfig) -> int:
    """Serves until SIGTERM; returns the exit code.

    Raises:
        InputError: the address is taken, or run folder or keys cannot be used.
    """
    setup("monitor", run_id=options.run_id)
    keys = _keys(options.keys / "cluster.key")
    reporter = Reporter(options.run_dir, keys)
    state = MonitorState(config, options.run_id)
    state.restore(reporter.earlier)
    num_ticks = 0

    def on_beat(beat: AgentBeat, _peer: bytes) -> None:
        reporter.report(state.on_beat(beat, time.monotonic()))

    def tick() -> None:
        nonlocal num_ticks
        reporter.follow_driver()
        reporter.report(state.tick(time.monotonic()))
        num_ticks += 1

    with contextlib.closing(reporter):
        server = Server(options.bind, {AgentBeat: on_beat}, keys=keys)
        announce(options.announce, Address(server.endpoint, keys.public.decode()))
        service = Service(
            "monitor",
            server,
            beat=Beat(endpoint=options.executor, progress=lambda: num_ticks)
            if options.executor
            else None,
            describe=lambda: {
                "pid": os.getpid(),
                "num_nodes": len(state.nodes),
                "num_ranks": len(state.ranks),
                "num_open_verdicts": len(state.open_verdicts()),
                "generation": state.generation,
            },
            run_id=options.run_id,
        )
        service.every(config.beat_interval_s, tick)
        return service.run()


def _keys(path: Path) -> KeyPair:
    """The cluster's key pair. Every monitor of a run has it, so agents need not learn another."""
    if not path.exists():
        KeyPair.generate().save(path)
    return KeyPair.load(path)
