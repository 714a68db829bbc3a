"""The agent of a node: reports the state of the node and its ranks to the monitor twice a second.

Everything comes from /proc, from shared memory and from log files. A worker is touched by a signal
alone, and only while it may hang: then it writes its own stacks.
Whatever may hang with a disk is read on separate threads, so a hung mount delays some values but no
beats. Its death interrupts only the beats; after a restart it continues reading the logs where it
stopped. It also has the flight records of the node saved to the run's folder.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from headway.common.log import setup
from headway.common.node.process import ProcessId
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.health import (
    AgentBeat,
    Finding,
    HostSignals,
    Machine,
    WorkerSignals,
)
from headway.common.wire.server import Server
from headway.common.wire.service import Beat, Service
from headway.health.announce import FollowedPeer
from headway.health.config import EventsConfig, HealthConfig
from headway.health.detectors.rank_view import RankView
from headway.health.exporter import BeatCollector
from headway.health.rule_files import rules_of
from headway.health.sources.changes import changed
from headway.health.sources.connections import ConnectionSource, Peers
from headway.health.sources.ends import EndSource
from headway.health.sources.host import FreeSpace, read_host
from headway.health.sources.kernel_log import KMSG
from headway.health.sources.node_sources import NodeSources, SourceOptions
from headway.health.sources.stacks import StackSource
from headway.health.sources.workers import WorkerSource
from headway.health.step_summaries import StepSummaries
from headway.health.store.child import SaveThread, Saving

MAX_WAITING_BEATS = 8
"""A beat has the complete state, so a queue of two seconds is enough for a reconnection."""
SUMMARY_INTERVAL_S = 1.0
"""Steps are summed up together, since each reading of a ring costs as much as many of its steps."""
MAX_FINDINGS_A_BEAT = 64
"""Limits the size of a beat when many lines match; the rest is sent with the next beat."""
HOST_BEATS = 4
"""Beats after which load, memory and pressure of the node are read again."""
MACHINE_BEATS = 120
"""Beats after which the machine's identity is sent again, for a monitor that has started since."""
SUSPENDED_CUTS = 5
"""Where a rank may take long, as in its first steps, its peers are asked after so many times
``fabric_silence_s``: a cut of the network would otherwise show only at ``suspended_limit_s``."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Settings of an agent: its own endpoint, the monitor's address, and the folders to observe."""

    endpoint: str
    node_file: Path
    keys: Path
    """Folder with ``agent.key``, the only key that the monitor admits."""
    shm_dir: Path
    logs: Path
    run_id: str
    node: int
    log_pattern: str = "*.log"
    executor: str | None = None
    metrics_port: int | None = None
    rank_metrics: bool = False
    """Export figures of each rank too, by a label ``rank``."""
    events: Path | None = None
    """Folder where flight records are saved; if None they stay in memory."""
    fabric_address: str = ""
    """Where ranks of other nodes reach those of this one."""
    mounts: tuple[Path, ...] = ()
    """Further folders whose file systems the run needs, beside ``logs`` and ``events``."""
    sysfs: Path = Path("/sys")
    kmsg: Path = KMSG
    """The kernel's log, or a file of its lines."""
    nvml: str = ""
    """Library to use instead of the driver's ``libnvidia-ml.so.1``."""
    keep_gib: float = EventsConfig.keep_gib
    """Disk space for the flight records that are saved."""
    verdicts: Path | None = None
    """The run's ``verdicts.jsonl``: records around its incidents are kept longer."""


class NodeWatch:
    """Builds the node's beats."""

    def __init__(self, options: AgentOptions, config: HealthConfig) -> None:
        self._options, self._config = options, config
        self._me = ProcessId.current()
        self._workers = WorkerSource(options.shm_dir, config)
        self._connections = ConnectionSource(options.fabric_address)
        self._ends = EndSource(options.shm_dir)
        self._stacks = StackSource(options.shm_dir)
        self._disk = FreeSpace(options.logs)
        self._rules, refused = rules_of(config.rules)
        self._sources = NodeSources(_source_options(options), config, self._rules)
        self._findings: deque[tuple[Finding, float | None]] = deque()
        """Findings and until when they are repeated; None before they were first sent."""
        if refused:
            self._refuse(refused)
        self._host: HostSignals | None = None
        self._machine: Machine | None = None
        """The machine as it was last sent; None before that."""
        self._sequence = 0
        self.newest: AgentBeat | None = None

    def beat(self) -> AgentBeat:
        """The current state of everything; never blocks on a disk."""
        self._sequence += 1
        room = max(0, MAX_FINDINGS_A_BEAT - len(self._findings))
        self._findings.extend((found, None) for found in self._sources.take(room))
        for refused in self._rules.turned_off():
            self._refuse(refused)
        workers = self._with_stacks(self._workers.read())
        self._sources.look(workers)
        peers = self._peers(workers)
        self.newest = AgentBeat(
            run_id=self._options.run_id,
            node=self._options.node,
            pid=self._me.pid,
            start_ticks=self._me.start_ticks,
            sequence=self._sequence,
            workers=workers,
            host=self._newest_host(),
            findings=tuple(found for found, _ in list(self._findings)[:MAX_FINDINGS_A_BEAT]),
            fabric_address=self._options.fabric_address,
            silent_peers=peers.silent,
            num_asked=peers.asked.num,
            reached=peers.asked.reached,
            machine=self._changed_machine(),
            ends=self._ends.read(workers),
        )
        return self.newest

    def workers(self) -> tuple[WorkerSignals, ...]:
        """The ranks as they are now."""
        return self._workers.read()

    def _refuse(self, why: str) -> None:
        self._findings.append((changed("rules_refused", "host", "node", why), None))

    def _newest_host(self) -> HostSignals:
        """The state of the node, read again with every fourth beat: it changes slowly."""
        if self._host is None or self._sequence % HOST_BEATS == 1:
            self._host = read_host(self._disk.newest(), self._options.shm_dir)
        return self._host

    def _changed_machine(self) -> Machine | None:
        """The machine's identity where it is due, else None."""
        machine = self._sources.machine()
        if machine == self._machine and self._sequence % MACHINE_BEATS != 1:
            return None
        self._machine = machine
        return machine

    def _peers(self, workers: Sequence[WorkerSignals]) -> Peers:
        """Look for peers that do not answer, only while a rank may hang.

        A healthy run asks nobody, however long its steps are, and its beats read no tables of the
        kernel.
        """
        if self._options.fabric_address and any(self._may_hang(worker) for worker in workers):
            return self._connections.read([worker.pid for worker in workers])
        self._connections.close()
        return Peers()

    def _with_stacks(self, workers: tuple[WorkerSignals, ...]) -> tuple[WorkerSignals, ...]:
        """The ranks, those that may hang with their places in the program."""
        places = self._stacks.read([worker for worker in workers if self._may_hang(worker)])
        if not places:
            return workers
        return tuple(
            msgspec.structs.replace(  # type: ignore[type-var]
                worker, place=places.get(worker.rank, "")
            )
            for worker in workers
        )

    def _may_hang(self, worker: WorkerSignals) -> bool:
        """Whether a rank is silent beyond the limit at which the monitor counts it as hung.

        Ranks that join make connections to all peers, and a cut is the likeliest reason why they
        wait.
        """
        view = RankView(self._options.node, worker)
        limit_s, cut_s = view.limit_s(self._config), self._config.fabric_silence_s
        if worker.phase == "join":
            limit_s = cut_s
        elif view.is_suspended(self._config):
            limit_s = min(limit_s, SUSPENDED_CUTS * cut_s)
        return worker.age_s > limit_s

    def sent(self, now_s: float) -> None:
        """The newest beat was sent: its findings are repeated for a while, then discarded."""
        num_sent = min(len(self._findings), MAX_FINDINGS_A_BEAT)
        sent = [self._findings.popleft() for _ in range(num_sent)]
        until_s = now_s + self._config.hit_repeat_s
        kept = [(found, until_s if limit_s is None else limit_s) for found, limit_s in sent]
        self._findings.extendleft(
            reversed([(found, limit_s) for found, limit_s in kept if limit_s > now_s])
        )

    def close(self) -> None:
        self._workers.close()
        self._connections.close()
        self._disk.close()
        self._sources.close()


def _source_options(options: AgentOptions) -> SourceOptions:
    folders = [options.logs, *([options.events] if options.events else []), *options.mounts]
    return SourceOptions(
        options.logs,
        options.shm_dir,
        options.log_pattern,
        options.sysfs,
        options.kmsg,
        options.nvml,
        tuple(folders),
        options.fabric_address,
    )


def run_agent(options: AgentOptions, config: HealthConfig) -> int:
    """Serves until SIGTERM; returns the exit code.

    Raises:
        InputError: the endpoint or the metrics port is in use, or the key cannot be used.
    """
    setup("agent", run_id=options.run_id, node=options.node)
    keys = KeyPair.load_or_make(options.keys / "agent.key")
    monitor = FollowedPeer(options.node_file, MAX_WAITING_BEATS, keys)
    watch = NodeWatch(options, config)
    num_beats = 0

    def send_beat() -> None:
        nonlocal num_beats
        monitor.refresh()
        if monitor.notify(watch.beat()):
            watch.sent(time.monotonic())
        num_beats += 1

    summaries = StepSummaries(options.shm_dir, options.run_id, options.node)
    with (
        contextlib.closing(watch),
        contextlib.closing(monitor),
        contextlib.closing(summaries),
    ):
        service = Service(
            "agent",
            Server(options.endpoint, {}),
            beat=Beat(endpoint=options.executor, progress=lambda: num_beats)
            if options.executor
            else None,
            metrics_port=options.metrics_port,
            describe=lambda: {"node": options.node, "pid": os.getpid(), "num_beats": num_beats},
            run_id=options.run_id,
        )
        service.metrics.register(BeatCollector(lambda: watch.newest, options.rank_metrics))
        beats = service.every(config.beat_interval_s, send_beat)
        if options.events is not None:

            def send_summaries() -> None:
                if watch.newest is not None:
                    summaries.send(watch.newest.workers, monitor.notify)

            service.every(SUMMARY_INTERVAL_S, send_summaries)
            keep_bytes = EventsConfig(options.keep_gib).keep_bytes
            saving = Saving(
                options.shm_dir, options.events, options.node, keep_bytes, options.verdicts
            )
            windows = SaveThread(saving)

            def finish() -> bool:
                beats.cancel()  # ranks that end with the agent must not be reported as crashed
                summaries.send(watch.workers(), monitor.notify)
                return windows.finish()

            service.on_drain(finish)
        return service.run()
