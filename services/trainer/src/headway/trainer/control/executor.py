"""The guardian of one node: two sockets, a timer, and the run it carries.

It decides nothing about ranks: it starts, ends and watches processes, passes messages between the driver
and the workers, and keeps what the driver has not stored yet. Killed, it leaves everything running; its
successor finds it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from headway.common.config import load
from headway.common.errors import InputError
from headway.common.log import get_logger
from headway.common.node.janitor import leave_run
from headway.common.node.process import ProcessId, reap_children
from headway.common.node.run_dir import RunDir, RunLock
from headway.common.wire.message import Message
from headway.common.wire.messages.ckpt_store import CheckpointComplete, StoreTrouble
from headway.common.wire.messages.driver import Relay
from headway.common.wire.messages.executor import (
    Attached,
    AttachRun,
    DriverBeat,
    Evaluation,
    Inject,
    KillWorker,
    LeftGeneration,
    ReadSeals,
    Sample,
    StepMetrics,
    StopRun,
    StoreOpened,
    ToWorker,
    WorkerBeat,
)
from headway.common.wire.messages.service import ServiceBeat
from headway.common.wire.messages.worker import Abort, Acknowledged, Quit, StoreAddress
from headway.common.wire.server import Server
from headway.common.wire.service import Service
from headway.launch.cluster import ClusterFolder
from headway.trainer.config import RunConfig
from headway.trainer.control.node_run import NodeRun

WATCH_S = 0.05  # 20 Hz: a stopped worker is found within one period
BEAT_S = 0.25
FOLDER_LOOK_S = 1.0
FOLDER_LIMIT_S = 15.0  # a network file system may lose a folder for moments
# a driver takes about that long to be heard: the next node waits for the one before it
STAGGER_S = 1.0
START_GRACE_S = 20.0  # the first driver of a run may wait for a busy machine

log = get_logger("executor")


class Executor:
    """``run`` returns when the service is stopped, or when an ephemeral cluster's only run has ended."""

    def __init__(self, cluster: ClusterFolder, node: int) -> None:
        if not 0 <= node < cluster.nodes:
            raise InputError(
                f"node {node} is outside the cluster's {cluster.nodes} nodes",
                remedy=f"use 0 to {cluster.nodes - 1}",
            )
        self.cluster, self.node = cluster, node
        keys = cluster.keys
        handlers: dict[type[Message], Callable[..., Message | None]] = {
            AttachRun: self._attach,
            DriverBeat: self._driver_beat,
            ToWorker: self._to_worker,
            KillWorker: self._kill_worker,
            ReadSeals: self._read_seals,
            StopRun: self._stop_run,
            Inject: self._inject,
        }
        cluster.claim(node)
        self._cluster_id = cluster.id  # read now: the folder may be removed under a living run
        self._lock = RunLock.hold(self._cluster_id)
        self._server = Server("tcp://127.0.0.1:0", handlers, keys=keys, allowed={keys.public})
        self._service = Service("executor", server=self._server)
        self._local: Server | None = None
        self._run: NodeRun | None = None
        self._epoch = 0
        self._driver: bytes | None = None
        self._heard_at = self._folder_seen_at = time.monotonic()
        self._service.every(WATCH_S, self._watch)
        self._service.every(BEAT_S, self._beat)
        self._service.every(FOLDER_LOOK_S, self._watch_folder)

    def run(self) -> int:
        """Serve until stopped; returns the exit code."""
        self.cluster.announce(self.node, self._server.endpoint, ProcessId.current())
        carried = self.cluster.read(f"nodes/{self.node}.run")
        if carried is not None:
            self._carry(Path(str(carried["run_dir"])), fresh=False)
        log.info("executor is up", node=self.node, endpoint=self._server.endpoint)
        code = self._service.run()
        # stopped in the middle of a run it leaves everything to its successor
        if self._run is None:
            self._lock.release()
            leave_run(self._cluster_id)
            self.cluster.remove(f"nodes/{self.node}.run")
        return code

    # ---- the run ------------------------------------------------------------------------------
    def _attach(self, message: AttachRun, peer: bytes) -> Attached:
        del peer
        run_dir = Path(message.run_dir)
        if self._run is not None and self._run.run.path != run_dir:
            raise InputError(
                f"node {self.node} carries {self._run.run.path}", remedy="stop that run first"
            )
        if self._run is None:
            run = RunDir(run_dir)
            load(RunConfig, files=[run.config])  # a folder that is no run must not mark the node
            self.cluster.write(
                f"nodes/{self.node}.run", {"run_dir": str(run_dir), "run_id": run.run_id}
            )
            self._carry(run_dir, fresh=True)
        return Attached(node=self.node)

    def _carry(self, run_dir: Path, *, fresh: bool) -> None:
        self._run = NodeRun(self.cluster, self.node, run_dir)
        self._heard_at, self._epoch, self._driver = time.monotonic(), 0, None
        self._local = Server(
            self._run.paths.endpoint("executor"),
            {
                WorkerBeat: self._worker_beat,
                StoreOpened: self._store_opened,
                LeftGeneration: self._left,
                StepMetrics: self._metrics,
                Evaluation: self._evaluation,
                Sample: self._sample,
                ServiceBeat: self._quiet,
                CheckpointComplete: self._checkpoint,
                StoreTrouble: self._trouble,
            },
        )
        self._service.watch(self._local.socket, self._local.handle_ready)
        if (fresh and self.node == 0) or self._run.had_driver():
            self._run.host_driver()

    def _stop_run(self, message: StopRun, peer: bytes) -> None:
        del peer
        if self._run is None or message.epoch < self._epoch:
            return
        log.info("the run has ended", outcome=message.outcome)
        for member in self._run.crew.members.values():
            self._send(member.peer, Quit())
        assert self._local is not None
        self._run.end()
        self._service.unwatch(self._local.socket)
        self._local.close()
        ephemeral = self._cluster_id == self._run.paths.run_id
        self._run, self._local = None, None
        # who waits for the run to be over waits for this node to be clean: K.run goes last
        if ephemeral:
            self._service.stop()
        else:
            self.cluster.remove(f"nodes/{self.node}.run")

    # ---- timers -------------------------------------------------------------------------------
    def _watch(self) -> None:
        if self._run is None:
            return
        now = time.monotonic()
        reap_children()
        gone = self._run.poll(now)
        for worker in gone:
            self._to_driver(worker)
        if gone:
            self._beat()
        limit = self._run.config.recovery.driver_silent_s + STAGGER_S * self.node
        if self._driver is None:
            limit += START_GRACE_S
        if not self._run.hosts_driver and now - self._heard_at > limit:
            log.warning("no driver is heard; starting one", silent_s=now - self._heard_at)
            self._run.host_driver()

    def _watch_folder(self) -> None:
        """End a run whose folder was removed: nobody could reach or find it any more."""
        if self._run is None or self._run.run.config.exists():
            self._folder_seen_at = time.monotonic()
        elif time.monotonic() - self._folder_seen_at > FOLDER_LIMIT_S:
            log.error("the run's folder is gone; ending the run", folder=str(self._run.run.path))
            self._stop_run(StopRun(epoch=self._epoch, outcome="failed"), b"")

    def _beat(self) -> None:
        if self._run is None or self._driver is None or not self._run.crew.settled:
            return
        self._to_driver(self._run.beat())
        for report in list(self._run.reports)[:64]:
            self._to_driver(report)

    # ---- from the driver ----------------------------------------------------------------------
    def _driver_beat(self, message: DriverBeat, peer: bytes) -> None:
        if self._run is None or not self._obeys(message.epoch):
            return
        first = self._driver != peer
        self._driver, self._heard_at = peer, time.monotonic()
        self._run.obey(message)
        if self._run.hosts_driver and message.host_node != self.node:
            self._run.leave_driver()
        if first:
            self._beat()

    def _obeys(self, epoch: int) -> bool:
        if epoch < self._epoch:
            log.warning("dropped a message of an older driver", epoch=epoch, current=self._epoch)
            return False
        self._epoch = epoch
        return True

    def _to_worker(self, message: ToWorker, peer: bytes) -> None:
        del peer
        if self._run is None or not self._obeys(message.epoch):
            return
        identity = self._run.crew.peer(message.worker)
        if identity is None:
            return
        if message.assign is not None:
            self._send(identity, message.assign)
        if message.store_generation >= 0:
            self._send(
                identity,
                StoreAddress(
                    generation=message.store_generation,
                    host=message.store_host,
                    port=message.store_port,
                    secret=message.store_secret,
                ),
            )
        if message.steer is not None:
            self._send(identity, message.steer)
        if message.abort_generation is not None:
            self._send(identity, Abort(generation=message.abort_generation))

    def _kill_worker(self, message: KillWorker, peer: bytes) -> None:
        del peer
        if self._run is not None and self._obeys(message.epoch):
            self._run.crew.kill(message.worker)

    def _read_seals(self, message: ReadSeals, peer: bytes) -> None:
        del peer
        if self._run is not None and self._obeys(message.epoch):
            self._to_driver(self._run.seals(message.generation))

    def _inject(self, message: Inject, peer: bytes) -> None:
        del peer
        if self._run is not None and self._obeys(message.epoch):
            hit = self._run.inject(message.target, message.fault, message.rank)
            log.warning(
                "injected", target=message.target, fault=message.fault, rank=message.rank, hit=hit
            )

    # ---- from the node's own processes --------------------------------------------------------
    def _worker_beat(self, message: WorkerBeat, peer: bytes) -> None:
        assert self._run is not None
        if self._run.crew.hear(message, peer):
            self._beat()
        self._send(peer, Acknowledged())

    def _store_opened(self, message: StoreOpened, peer: bytes) -> None:
        del peer
        self._to_driver(Relay(node=self.node, store=message))

    def _left(self, message: LeftGeneration, peer: bytes) -> None:
        del peer
        self._to_driver(Relay(node=self.node, left=message))

    def _metrics(self, message: StepMetrics, peer: bytes) -> None:
        del peer
        assert self._run is not None
        self._to_driver(self._run.report(metrics=message))

    def _evaluation(self, message: Evaluation, peer: bytes) -> None:
        del peer
        assert self._run is not None
        self._to_driver(self._run.report(evaluation=message))

    def _sample(self, message: Sample, peer: bytes) -> None:
        del peer
        assert self._run is not None
        self._to_driver(self._run.report(sample=message))

    def _quiet(self, message: ServiceBeat, peer: bytes) -> None:
        """Not used yet: services are watched by pid."""

    def _checkpoint(self, message: CheckpointComplete, peer: bytes) -> None:
        del peer
        log.info("checkpoint complete", step=message.step, generation=message.generation)

    def _trouble(self, message: StoreTrouble, peer: bytes) -> None:
        del peer
        log.error(
            "the checkpoint store is in trouble",
            kind=message.kind,
            detail=message.message,
            remedy=message.remedy,
        )

    # ---- sending ------------------------------------------------------------------------------
    def _to_driver(self, message: Message) -> None:
        if self._driver is not None:
            self._server.send(self._driver, message)

    def _send(self, peer: bytes, message: Message) -> None:
        if self._local is not None:
            self._local.send(peer, message)
