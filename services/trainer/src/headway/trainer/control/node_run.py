"""One run on one node: its services, its workers, its reports; what the executor does between messages."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from pathlib import Path

from headway.ckpt_store.config import StoreConfig
from headway.common.config import diff, load
from headway.common.errors import CorruptError, InputError
from headway.common.log import get_logger
from headway.common.node.arena import Arena
from headway.common.node.failpoints import configure
from headway.common.node.files import replace_json
from headway.common.node.janitor import end_node, leave_run
from headway.common.node.process import DEAD, ProcessId
from headway.common.node.run_dir import NodePaths, RunDir, RunLock
from headway.common.polling import wait_until
from headway.common.wire.messages.driver import NodeBeat, Report, Seals, WorkerGone
from headway.common.wire.messages.executor import DriverBeat, Evaluation, Sample, StepMetrics
from headway.health.client import FlightWindows
from headway.health.config import HealthConfig
from headway.launch.cluster import ClusterFolder
from headway.trainer.config import RunConfig
from headway.trainer.control.children import Children, Spec
from headway.trainer.control.crew import Crew
from headway.trainer.store_watch import StoreWatch

MAX_REPORTS = 20_000  # about a day of steps without a driver; the oldest are dropped first
DRAIN_LIMIT_S = 8.0
WORKERS_LIMIT_S = 2.0  # of it: SIGTERM ends a worker at once, unless it is frozen
KILL_LIMIT_S = 1.0
FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
MALLOC_ARENAS = os.environ.get("MALLOC_ARENA_MAX", "2")
"""glibc gives threads heaps of their own, whose tops it never returns: workers would grow with each recovery."""

log = get_logger("node")


class NodeRun:
    """Made when a run is attached to the node, and again by a restarted executor, which finds all as it was."""

    def __init__(self, cluster: ClusterFolder, node: int, run_dir: Path) -> None:
        self.cluster, self.node = cluster, node
        self.run = RunDir(run_dir)
        self.config = load(RunConfig, files=[self.run.config])
        self.paths = NodePaths(self.run.run_id, node).create()
        self.lock = RunLock.hold(self.run.run_id)
        configure(self.paths.failpoints, node=node)
        self.children = Children(self.paths.sock_dir / "children.json", self.run.logs, node)
        self.crew = Crew(
            node,
            self.paths.sock_dir / "workers.json",
            self.paths.socket("zygote"),
            self.paths.shm_dir,
        )
        self.reports: deque[Report] = deque(maxlen=MAX_REPORTS)
        self.active = node < self.config.launch.nodes
        self.refill = True
        self._sequence = 0
        self._monitor = ("", "")
        self._unreadable: set[Path] = set()
        for spec in self._services():
            self.children.keep(spec)

    # ---- what runs here -----------------------------------------------------------------------
    def _services(self) -> list[Spec]:
        paths, env = self.paths, self._env()
        common = {
            "run_id": self.run.run_id,
            "node": self.node,
            "executor": paths.endpoint("executor"),
            "shm_dir": paths.shm_dir,
        }
        dataloader = _command(
            "dataloader", "serve", endpoint=paths.endpoint("dataloader"), **common
        )
        ckpt_store = _command(
            "ckpt_store",
            "serve",
            endpoint=paths.endpoint("ckpt_store"),
            **common,
            checkpoints=self.run.checkpoints,
            world_size=self.config.parallel.world_size,
        )
        agent = _command(
            "health",
            "agent",
            endpoint=paths.endpoint("agent"),
            **common,
            node_file=paths.sock_dir / "monitor.json",
            logs=self.run.logs,
            log_pattern=f"n{self.node}[-w]*.log",
            events=self.run.events,
        )
        zygote = _command("trainer", "zygote", run=self.run.path, node=self.node)
        threads = self._env(threads=self.config.launch.threads_per_rank)
        return [
            Spec("dataloader", dataloader, env),
            Spec("ckpt_store", [*ckpt_store, *self._store_options()], env),
            Spec("agent", [*agent, *self._health_options()], env),
            Spec("zygote", zygote, {"MALLOC_ARENA_MAX": MALLOC_ARENAS, **threads}),
        ]

    def _health_options(self) -> list[str]:
        """The run's ``[health]`` table, as far as it differs from the defaults."""
        return _settings(HealthConfig(), self.config.health)

    def _store_options(self) -> list[str]:
        """The run's ``[ckpt]`` table in the same way."""
        return _settings(StoreConfig(), self.config.ckpt)

    def _env(self, threads: int = 1) -> dict[str, str]:
        pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        return {**self.paths.environment(), **dict.fromkeys(pools, str(threads))}

    def host_driver(self) -> None:
        """Run driver and monitor on this node, adopting those that already do."""
        where = {"run": self.run.path, "cluster": self.cluster.path, "node": self.node}
        driver = _command("trainer", "driver", **where)
        monitor = _command(
            "health",
            "monitor",
            bind="tcp://127.0.0.1:0",
            keys=self.cluster.path / "keys",
            run_id=self.run.run_id,
            run_dir=self.run.path,
            announce=self.run.path / "monitor.json",
        )
        self.children.keep(Spec("driver", driver, self._env()))
        self.children.keep(Spec("monitor", [*monitor, *self._health_options()], self._env()))

    @property
    def hosts_driver(self) -> bool:
        """Whether this node is the one that keeps the driver running."""
        return "driver" in self.children.names()

    def leave_driver(self) -> None:
        """Another node hosts the driver now."""
        for name in ("driver", "monitor"):
            process = self.children.drop(name)
            if process is not None:
                process.kill(signal.SIGTERM)

    def had_driver(self) -> bool:
        """Whether the executor before this one hosted the driver."""
        return self.children.was_known("driver")

    # ---- between messages ---------------------------------------------------------------------
    def obey(self, beat: DriverBeat) -> None:
        """Take over what the driver's beat says about this node."""
        if self.active and not beat.active:
            self._forget_arenas()
        self.active, self.refill = beat.active, beat.refill
        while self.reports and self.reports[0].sequence <= beat.acknowledged:
            self.reports.popleft()
        if (beat.monitor_endpoint, beat.monitor_key) != self._monitor:
            self._monitor = (beat.monitor_endpoint, beat.monitor_key)
            facts = {"endpoint": beat.monitor_endpoint, "server_key": beat.monitor_key}
            replace_json(self.paths.sock_dir / "monitor.json", facts)

    def poll(self, now: float) -> list[WorkerGone]:
        """Look after services and workers; returns the workers found dead."""
        if "zygote" in self.children.poll(now):
            self.crew.zygote_died()
        gone = self.crew.poll()
        if self.refill:
            launch = self.config.launch
            self.crew.refill(launch.standbys + (launch.ranks_per_node if self.active else 0), now)
        return gone

    def report(self, **what: StepMetrics | Evaluation | Sample | None) -> Report:
        """Keep a report until a driver acknowledges it. Sequence numbers grow over restarts: they are times."""
        previous = self.reports[-1].sequence if self.reports else 0
        self._sequence = max(time.time_ns(), self._sequence + 1)  # also when the clock is set back
        report = Report(node=self.node, sequence=self._sequence, previous=previous, **what)  # type: ignore[arg-type]
        self.reports.append(report)
        return report

    def beat(self) -> NodeBeat:
        """The whole truth of this node."""
        return NodeBeat(
            node=self.node,
            pid=os.getpid(),
            workers=self.crew.beats(),
            services=self.children.pids(),
        )

    def seals(self, generation: int) -> Seals:
        """Which snapshots the arenas of this node hold."""
        sealed = {}
        for path in self.paths.segments("arena"):
            arena = Arena.open(path, writable=False)
            sealed[int(path.stem.removeprefix("arena-"))] = tuple(
                sorted(info.step for info in arena.sealed())
            )
            arena.close()
        return Seals(node=self.node, generation=generation, sealed=sealed)

    def inject(self, target: str, fault: str, rank: int) -> bool:
        """Break a worker or a service, for drills.

        Raises:
            InputError: an unknown fault.
        """
        if fault not in FAULTS:
            raise InputError(f"unknown fault {fault!r}", remedy=f"use {' or '.join(FAULTS)}")
        number = FAULTS[fault]
        if target == "executor":
            return ProcessId.current().kill(number)
        process = self.children.process(target)
        if target == "worker":
            name = self.crew.rank_worker(rank)
            process = self.crew.members[name].process if name else None
        return process is not None and process.kill(number)

    def _forget_arenas(self) -> None:
        """A node that carries no rank any more must not offer what it once held."""
        for path in self.paths.segments("arena"):
            path.unlink(missing_ok=True)

    # ---- the end ------------------------------------------------------------------------------
    def end(self) -> None:
        """Stop everything of the run on this node and remove what it left in memory.

        Blocks some seconds, or for as long as the checkpoint store gets ahead with what is still
        to be made durable.
        """
        deadline = time.monotonic() + DRAIN_LIMIT_S
        found = {name: self.children.process(name) for name in self.children.names()}
        services = {name: process for name, process in found.items() if process is not None}
        driver = services.pop("driver", None)  # it ends by itself
        store = services.pop("ckpt_store", None)
        workers = self.crew.processes()
        # All at once, so that each has the whole time; and services first: an agent that was told
        # sends no beat any more, which would report ranks that end in order as crashed.
        for process in [*services.values(), *workers]:
            process.kill(signal.SIGTERM)
        if not _wait_for(workers, WORKERS_LIMIT_S):
            _kill(workers)  # a frozen rank takes no SIGTERM
        if store is not None:
            self._finish_store(store)
            services["ckpt_store"] = store
        others = [*services.values(), *([driver] if driver else [])]
        if not _wait_for([*workers, *others], max(0.0, deadline - time.monotonic())):
            _kill([*workers, *services.values()])
            _wait_for([*workers, *services.values()], KILL_LIMIT_S)
        self._save_last_records(services.get("agent"))
        for line in end_node(self.paths.run_id, self.node):
            log.info(line)
        self.lock.release()
        leave_run(self.paths.run_id)

    def _finish_store(self, store: ProcessId) -> None:
        """Let the store write what ranks want durable, then end it; each while it moves."""
        watch = StoreWatch(self.paths.endpoint("ckpt_store"))
        try:
            is_done = watch.wait(lambda: not self._wanted() or not _can_run(store))
            store.kill(signal.SIGTERM)
            is_done = watch.wait(lambda: not _can_run(store)) and is_done
            if self._wanted() or not is_done:
                durable = watch.status.complete_step if watch.status is not None else None
                log.warning(
                    "the checkpoint store is ended before its work is done",
                    undurable_steps=self._wanted(),
                    durable_step=durable,
                    checkpoints=str(self.run.checkpoints),
                )
        finally:
            watch.close()
        store.kill()

    def _wanted(self) -> list[int]:
        """The steps that ranks of this node still want durable, as far as their arenas can be read."""
        steps: set[int] = set()
        for path in set(self.paths.segments("arena")) - self._unreadable:
            try:
                with Arena.open(path, writable=False) as arena:
                    steps.update(info.step for info in arena.wanted())
            except FileNotFoundError:
                continue
            except (CorruptError, OSError) as error:
                self._unreadable.add(path)
                log.warning("an arena is not looked at", arena=str(path), reason=str(error))
        return sorted(steps)

    def _save_last_records(self, agent: ProcessId | None) -> None:
        """Save what the agent did not: what its ranks had open, or all if it was dead or frozen."""
        if agent is not None and agent.alive():  # stuck in the kernel; two would save records twice
            log.warning("the agent does not end: the last flight records may not be saved")
            return
        FlightWindows(self.paths.shm_dir, self.run.events, self.node).save(final=True)


def _settings(defaults: object, config: object) -> list[str]:
    """``--set`` options for what differs from the defaults."""
    changed = diff(defaults, config)
    return [word for key, (_, value) in changed.items() for word in ("--set", f"{key}={value}")]


def _can_run(process: ProcessId) -> bool:
    return process.state() not in {*DEAD, "T"}


def _kill(processes: list[ProcessId]) -> None:
    for process in processes:
        process.kill()


def _wait_for(processes: list[ProcessId], limit_s: float) -> bool:
    """Whether all of them ended in time."""
    return wait_until(lambda: not any(process.alive() for process in processes), limit_s)


def _command(part: str, verb: str, **options: object) -> list[str]:
    """``python -m headway.PART VERB`` with its options: ``shm_dir=x`` becomes ``--shm-dir x``."""
    command = [sys.executable, "-m", f"headway.{part}", verb]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return command
