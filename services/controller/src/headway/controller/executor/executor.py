"""The executor of one node: its sockets and timers, around the run that the node carries.

It dials the process that holds the driver's lease, passes messages between the driver and the
node's workers, and lets ``Guardian`` decide about everything else. Killed, it leaves everything
running; its successor, which the node's init starts, finds it again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from headway.common.config import load
from headway.common.errors import InputError
from headway.common.log import get_logger
from headway.common.log_rotation import rotation
from headway.common.node.janitor import leave_run
from headway.common.node.process import ProcessId, reap_children
from headway.common.node.run_dir import RunDir, RunLock
from headway.common.paces import FOLDER_LOOK_S, NODE_BEAT_S
from headway.common.wire.loop import Throttle
from headway.common.wire.message import Message
from headway.common.wire.messages.ckpt_store import CheckpointComplete, StoreTrouble
from headway.common.wire.messages.driver import Relay
from headway.common.wire.messages.executor import (
    Attached,
    AttachRun,
    Evaluation,
    LeftGeneration,
    Sample,
    StepMetrics,
    StopRun,
    StoreOpened,
    WorkerBeat,
)
from headway.common.wire.messages.service import ServiceBeat
from headway.common.wire.messages.worker import Acknowledged, Quit
from headway.common.wire.server import Server
from headway.common.wire.service import SOCKET_LOOK_S, Service
from headway.common.wire.side_thread import SideThread
from headway.controller.executor.driver_orders import DriverOrders
from headway.controller.executor.last_save import LastSave
from headway.controller.executor.node_events import (
    ServiceReported,
    WorkerLeft,
    WorkerReported,
)
from headway.controller.executor.node_events import Trouble as NodeTrouble
from headway.controller.executor.node_metrics import node_metrics
from headway.controller.executor.node_run import NodeRun
from headway.controller.executor.uplink import Uplink
from headway.launch.cluster import ClusterFolder
from headway.launch.init.beats import BeatSender
from headway.trainer.config import RunConfig

WATCH_S = 0.05  # 20 Hz: a stopped worker is found within one period
ANNOUNCE_AGAIN_S = 1.0

log = get_logger("executor")


class Executor:
    """A node's executor; ``run`` ends when stopped, or after an ephemeral cluster's only run."""

    def __init__(self, cluster: ClusterFolder, node: int) -> None:
        if not 0 <= node < cluster.nodes:
            raise InputError(
                f"node {node} is outside the cluster's {cluster.nodes} nodes",
                remedy=f"use 0 to {cluster.nodes - 1}",
            )
        self.cluster, self.node = cluster, node
        self._me = ProcessId.current()
        self._init = BeatSender(os.environ)
        cluster.claim(node)
        self._cluster_id = cluster.id  # read now: the folder may be removed under a living run
        self._lock = RunLock.hold(self._cluster_id)
        self._keys = cluster.key_of("executor")
        self._server = Server(
            cluster.network.endpoint,
            {AttachRun: self._attach, StopRun: self._console_stops},
            keys=self._keys,
            allowed=cluster.public_of("console"),
        )
        self._service = Service("executor", server=self._server)
        self._local: Server | None = None
        self._run: NodeRun | None = None
        self._uplink: Uplink | None = None
        self._ending: SideThread | None = None
        self._last_save: LastSave | None = None
        self._looked_at = 0.0
        self._is_emptied = False
        self._sent_version = -1
        self._throttle = Throttle()
        self._orders = DriverOrders(
            to_worker=self._send,
            to_driver=self._to_driver,
            end=self._end,
            report_change=self._report_change,
        )
        self._service.every(WATCH_S, self._watch)
        self._service.every(NODE_BEAT_S, self._beat)
        self._service.every(NODE_BEAT_S, self._init.beat)
        self._service.every(FOLDER_LOOK_S, self._watch_folder)
        self._service.on_drain(self._save_first)
        self._service.every(SOCKET_LOOK_S, self._keep_files)
        self._service.metrics.register(node_metrics(lambda: self._run))

    def run(self) -> int:
        """Serve until stopped; returns the exit code."""
        self._announce()
        carried = self.cluster.read(f"nodes/{self.node}.run")
        if carried is not None:
            is_fresh = bool(carried.pop("is_fresh", False))
            if is_fresh:  # for its successor, which may start on a full disk and writes nothing
                self.cluster.write(f"nodes/{self.node}.run", carried)
            self._carry(Path(str(carried["run_dir"])), is_fresh=is_fresh)
        log.info("executor is up", node=self.node, endpoint=self._server.endpoint)
        code = self._service.run()
        # stopped in the middle of a run it leaves everything to its successor
        if self._run is None:
            self._lock.release()
            leave_run(self._cluster_id)
            self.cluster.remove(f"nodes/{self.node}.run")
        if code == 0:
            self._init.end()
        return code

    def _announce(self) -> None:
        try:
            self.cluster.announce(self.node, self._server.endpoint, self._me)
        except OSError as error:
            log.error("cannot announce this executor", reason=str(error))
            self._service.after(ANNOUNCE_AGAIN_S, self._announce)

    # ---- the run ------------------------------------------------------------------------------
    def _attach(self, message: AttachRun, _peer: bytes) -> Attached:
        run_dir = Path(message.run_dir)
        if self._run is not None and (self._run.run.path != run_dir or self._ending):
            raise InputError(
                f"node {self.node} carries {self._run.run.path}", remedy="stop that run first"
            )
        if self._run is None:
            run = RunDir(run_dir)
            load(RunConfig, files=[run.config])  # a folder that is no run must not mark the node
            self.cluster.write(
                f"nodes/{self.node}.run", {"run_dir": str(run_dir), "run_id": run.run_id}
            )
            self._carry(run_dir, is_fresh=not message.is_live)
        return Attached(node=self.node)

    def _carry(self, run_dir: Path, *, is_fresh: bool) -> None:
        run = NodeRun(
            self.cluster, self.node, run_dir, is_fresh=is_fresh, send=self._to_driver, end=self._end
        )
        self._run, self._sent_version = run, -1
        rotation.set_limit(run.config.launch.log_mib)
        identity = f"n{self.node}-{run.incarnation}"
        self._uplink = Uplink(self._service, identity, self._keys, self._from_driver)
        handlers: dict[type[Message], Callable[..., Message | None]] = {
            WorkerBeat: self._worker_beat,
            StoreOpened: self._store_opened,
            LeftGeneration: self._left,
            StepMetrics: self._report,
            Evaluation: self._report,
            Sample: self._report,
            ServiceBeat: self._service_beat,
            CheckpointComplete: self._checkpoint,
            StoreTrouble: self._trouble,
        }
        self._local = Server(run.paths.endpoint("executor"), handlers)
        self._service.watch(self._local.socket, self._local.handle_ready)
        self._service.watch(run.side_thread.done_fd, self._take_results)
        self._looked_at = 0.0
        if (ports := run.config.launch.metrics_ports) is not None:
            self._service.serve_metrics(ports.of("executor", self.node))

    def _keep_files(self) -> None:
        """What others need in the socket folder is put back when somebody has emptied it."""
        was_emptied, self._is_emptied = self._is_emptied, not self._lock.path.exists()
        if was_emptied:  # the second look: the cleaner is done
            self._lock.renew()
        if self._local is not None and self._run is not None and self._ending is None:
            self._local.keep_reachable()
            self._run.keep_files(was_emptied=was_emptied)

    def _console_stops(self, message: StopRun, _peer: bytes) -> None:
        if self._run is None:
            return
        if message.run_id != self._run.run.run_id:
            raise InputError(
                f"node {self.node} carries run {self._run.run.run_id}, not {message.run_id!r}",
                remedy="name the run that the node carries",
            )
        self._end(message.outcome)

    def _end(self, outcome: str) -> None:
        """End the run on a thread of its own: processes take seconds, consoles must not wait."""
        if self._run is None or self._ending is not None:
            return
        run = self._run
        log.info("the run has ended", outcome=outcome)
        for peer in run.peers.values():
            self._send(peer, Quit())
        self._ending = SideThread("end")
        self._ending.submit(run.ending().run, lambda _result, _error: self._over())
        self._service.unwatch(run.side_thread.done_fd)
        run.side_thread.close(0.0)
        if self._uplink is not None:
            self._uplink.close()
        if self._local is not None:
            self._service.unwatch(self._local.socket)

    def _over(self) -> None:
        """Nothing of the run is left on this node."""
        run, local, ending = self._run, self._local, self._ending
        self._run = self._uplink = self._local = self._ending = None
        assert run is not None and local is not None and ending is not None
        ending.close(0.0)
        local.close()
        self._service.end_metrics()
        # who waits for the run to be over waits for this node to be clean: K.run goes last
        if self._cluster_id == run.paths.run_id:
            self._service.stop()
        else:
            self.cluster.remove(f"nodes/{self.node}.run")

    def _save_first(self) -> bool:
        """Have the store write what memory holds, and return whether it is done.

        The machine may end with this executor. Nothing that ends is restarted meanwhile."""
        if self._run is None or self._ending is not None:
            return True
        if self._last_save is None:
            self._last_save = LastSave(self._run.paths.endpoint("ckpt_store"))
        return not self._last_save.is_alive()

    # ---- timers -------------------------------------------------------------------------------
    def _watch(self) -> None:
        if self._run is None or self._last_save is not None:
            return
        if self._ending is None:
            self._run.look()
            self._report_change()
            return
        reap_children()
        self._ending.run_callbacks()

    def _watch_folder(self) -> None:
        if self._run is None or self._ending is not None or self._last_save is not None:
            return
        now = time.monotonic()
        if now - self._looked_at >= self._run.poll_interval_s():
            self._looked_at = now
            self._run.look_at_folder()

    def _take_results(self) -> None:
        if self._run is None or self._uplink is None or self._ending is not None:
            return
        self._run.side_thread.run_callbacks()
        view = self._run.guardian.leading.view
        if view is not None and self._ending is None and self._uplink.follow(view.holder):
            self._run.guardian.known_version = -1
            self._run.outbox.begin_again()
            if self._run.clock is not None:
                self._run.clock.begin_again()
            self._beat()
        self._report_change()

    def _report_change(self) -> None:
        if self._run is not None and self._run.guardian.version != self._sent_version:
            self._beat()

    def _beat(self) -> None:
        if self._run is None or self._uplink is None or self._ending is not None:
            return
        self._sent_version = self._run.guardian.version
        if self._uplink.send(self._run.beat(is_ending=self._last_save is not None)):
            self._run.outbox.missed_beat()
            self._run.outbox.send(self._uplink.send)

    # ---- from the driver ----------------------------------------------------------------------
    def _from_driver(self, message: Message) -> None:
        if self._run is not None and self._ending is None:
            self._orders.take(self._run, message)

    # ---- from the node's own processes --------------------------------------------------------
    def _worker_beat(self, message: WorkerBeat, peer: bytes) -> None:
        assert self._run is not None
        self._run.handle(WorkerReported(message))
        self._run.peers[message.worker] = peer
        stored, measured = self._run.outbox.stored(message.worker), self._run.outbox.measured
        answer = Acknowledged(stored=stored, incarnation=self._run.incarnation, measured=measured)
        self._send(peer, answer)
        self._report_change()

    def _service_beat(self, message: ServiceBeat, _peer: bytes) -> None:
        assert self._run is not None
        self._run.handle(ServiceReported(message))

    def _store_opened(self, message: StoreOpened, _peer: bytes) -> None:
        self._to_driver(Relay(node=self.node, store=message))

    def _left(self, message: LeftGeneration, _peer: bytes) -> None:
        assert self._run is not None
        self._to_driver(Relay(node=self.node, left=message))
        self._run.handle(WorkerLeft(message))

    def _report(self, message: StepMetrics | Evaluation | Sample, peer: bytes) -> None:
        assert self._run is not None and self._uplink is not None
        outbox, lost = self._run.outbox, self._run.outbox.num_lost
        outbox.add(peer.decode("ascii", "replace"), message)
        if outbox.num_lost > lost and self._throttle.admit("lost") is not None:
            text = f"{outbox.num_lost} metrics were dropped: no driver took them for too long"
            log.error(text)
            self._run.handle(NodeTrouble("metrics", text))
        outbox.send(self._uplink.send)

    def _checkpoint(self, message: CheckpointComplete, _peer: bytes) -> None:
        how = "checkpoint written from memory" if message.from_memory else "checkpoint complete"
        log.info(how, step=message.step, generation=message.generation)

    def _trouble(self, message: StoreTrouble, _peer: bytes) -> None:
        log.error(
            "the checkpoint store is in trouble",
            kind=message.kind,
            detail=message.message,
            remedy=message.remedy,
        )

    # ---- sending ------------------------------------------------------------------------------
    def _to_driver(self, message: Message) -> None:
        if self._uplink is not None:
            self._uplink.send(message)

    def _send(self, peer: bytes, message: Message) -> None:
        if self._local is not None:
            self._local.send(peer, message)
