"""One per run: hears every executor, lets ``RunState`` decide, writes the journal, carries out.

It holds nothing that a successor could not find again: the journal keeps generations, commands and
reports; the rest is in the executors' beats.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.ckpt_store.client import mark_generation, newest
from headway.common.config import load
from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.node.failpoints import configure
from headway.common.node.files import replace_json
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths, RunDir
from headway.common.plan.placement import Placement
from headway.common.wire.client import Client
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import (
    Command,
    GetStatus,
    NodeBeat,
    Relay,
    Report,
    Seals,
    WorkerGone,
)
from headway.common.wire.messages.executor import DriverBeat, StopRun
from headway.common.wire.messages.health import Verdict
from headway.common.wire.server import Server
from headway.common.wire.service import Service
from headway.health.client import read_address
from headway.launch.cluster import ClusterFolder
from headway.launch.engine import Engine, NodeLost
from headway.launch.local import LocalEngine
from headway.trainer.config import RunConfig
from headway.trainer.control.events import (
    Action,
    BeginGeneration,
    DurableFound,
    FindDurable,
    Finish,
    Hopeless,
    Log,
    NodeUnavailable,
    NotBegun,
    RestartNode,
    Suspicion,
    Tell,
    Tick,
)
from headway.trainer.control.journal import Journal
from headway.trainer.control.requests import Requests
from headway.trainer.control.state import Event, RunState

TICK_S = 0.1
BEAT_S = 0.25
TAKEOVER_S = 1.0
"""How long a driver that takes a run over waits for a node's first beat, at most ``node_silent_s``."""
REPORTS = (NodeBeat, Relay, Seals, WorkerGone, Report)
ACTED_ON = frozenset({"crash", "stopped", "silence"})  # kinds of verdict that end a worker

log = get_logger("driver")


class Driver:
    """``run`` returns when the run is over.

    Raises:
        LockedError: another driver holds the journal.
    """

    def __init__(self, run_dir: Path, cluster: ClusterFolder, node: int) -> None:
        self.run_dir, self.cluster, self.node = RunDir(run_dir), cluster, node
        self.config = load(RunConfig, files=[self.run_dir.config])
        self.journal = Journal(self.run_dir.database)
        self._outcome = self.journal.fact("outcome", "")
        self.engine: Engine = LocalEngine(cluster)
        configure(NodePaths(self.run_dir.run_id, node).failpoints, node=node)
        self.state = self._initial_state()
        keys = cluster.keys
        self._keys = keys
        self._clients: dict[int, tuple[str, Client]] = {}
        self._restarted: set[str] = set()
        self._requests = Requests(
            self.run_dir.name,
            self.journal,
            self.state,
            self._clients,
            self.engine,
            home=node,
            act=lambda action: self._carry_out(action, time.monotonic()),
            handle=self._handle,
            tick=self._tick,
        )
        server = Server(
            "tcp://127.0.0.1:0",
            {
                GetStatus: self._requests.status,
                Command: self._requests.take,
                Verdict: self._verdict,
            },
            keys=keys,
            allowed={keys.public},
        )
        self._server = server
        self._service = Service("driver", server=server)
        self._service.every(TICK_S, self._tick)
        self._service.every(BEAT_S, self._beat)

    def _initial_state(self) -> RunState:
        limits, launch = self.config.recovery, self.config.launch
        placement = Placement(self.config.parallel.grid, launch.ranks_per_node)
        rank_nodes = {
            rank: placement.node_of(rank) for rank in range(self.config.parallel.world_size)
        }
        generation = -1
        if (last := self.journal.last_generation()) is not None:
            generation, remembered = last
            rank_nodes = remembered if set(remembered) == set(rank_nodes) else rank_nodes
        rank_nodes = {
            rank: home if home < self.cluster.nodes else placement.node_of(rank)
            for rank, home in rank_nodes.items()
        }
        state = RunState(
            steps=self.config.train.steps,
            rank_nodes=rank_nodes,
            nodes=self.cluster.nodes,
            now=time.monotonic(),
            generation=generation,
            commands=self.journal.commands(),
            epoch=self.journal.epoch,
            limits=limits,
        )
        # a successor: executors that live answer at once, the others need no long wait
        if generation >= 0:
            for node in state.nodes.values():
                node.heard_at -= max(0.0, limits.node_silent_s - TAKEOVER_S)
        return state

    def run(self) -> int:
        """Drive the run to its end; returns the exit code."""
        me = ProcessId.current()
        self._announce(
            {
                "endpoint": self._server.endpoint,
                "server_key": self._keys.public.decode(),
                "epoch": self.journal.epoch,
                "pid": me.pid,
                "start_ticks": me.start_ticks,
            }
        )
        self.journal.event(
            "driver_started", {"epoch": self.journal.epoch, "node": self.node}, time.monotonic()
        )
        if self._outcome:
            self._service.after(3.0, self._service.stop)
        log.info("driver is up", epoch=self.journal.epoch, endpoint=self._server.endpoint)
        code = self._service.run()
        self.journal.close()
        return code

    def _announce(self, facts: dict[str, Any]) -> None:
        replace_json(self.run_dir.path / "driver.json", facts, mode=0o600)

    # ---- timers -------------------------------------------------------------------------------
    def _tick(self) -> None:
        self._reconnect()
        self._restart_ended()
        if self._outcome:  # over: say so until the executors have heard it, also after a restart
            for _, client in self._clients.values():
                client.notify(StopRun(epoch=self.journal.epoch, outcome=self._outcome))
            return
        self._handle(Tick())

    def _beat(self) -> None:
        monitor = read_address(self.run_dir.path / "monitor.json")
        for number, (_, client) in self._clients.items():
            client.notify(
                DriverBeat(
                    epoch=self.journal.epoch,
                    host_node=self.node,
                    refill=self.state.refill,
                    active=number in self.state.rank_nodes.values(),
                    monitor_endpoint=monitor.endpoint if monitor else "",
                    monitor_key=monitor.server_key if monitor else "",
                    acknowledged=self.journal.reported(number),
                )
            )

    def _reconnect(self) -> None:
        """Executors announce themselves in the cluster's folder; a restarted one has a new address."""
        for number in range(self.cluster.nodes):
            address = self.cluster.address(number)
            known = self._clients.get(number)
            if address is None or (known is not None and known[0] == address.endpoint):
                continue
            if known is not None:
                self._service.unwatch(known[1].socket)
                known[1].close()
            client = Client(
                address.endpoint,
                keys=self._keys,
                server_key=self._keys.public,
                identity=f"driver-{self.journal.epoch}-{number}".encode(),
                accept=REPORTS,
            )
            self._clients[number] = (address.endpoint, client)
            self._service.watch(client.socket, self._receiver(client))

    def _receiver(self, client: Client) -> Callable[[], None]:
        def receive() -> None:
            for message in client.receive():
                self._hear(message)

        return receive

    # ---- hearing and acting -------------------------------------------------------------------
    def _hear(self, message: Message) -> None:
        match message:
            case Report():
                self.journal.store_report(
                    message.node,
                    message.sequence,
                    message.metrics,
                    message.evaluation,
                    message.sample,
                    previous=message.previous,
                )
            case NodeBeat() | Relay() | Seals() | WorkerGone():
                self._handle(message)
            case _:
                log.warning("unexpected message", message=type(message).__name__)

    def _handle(self, event: Event) -> None:
        now = time.monotonic()
        for action in self.state.handle(event, now):
            self._carry_out(action, now)

    def _carry_out(self, action: Action, now: float) -> None:
        match action:
            case Log():
                self.journal.event(action.event, action.fields, now)
                log.info(action.event, **action.fields)
            case Tell():
                if action.node in self._clients:
                    self._clients[action.node][1].notify(action.message)
            case BeginGeneration():
                self._begin(action)
            case FindDurable():
                self._handle(self._find_durable(action.max_step))
            case RestartNode():
                self._restart(action.node)
            case Finish():
                self._finish(action, now)

    def _begin(self, action: BeginGeneration) -> None:
        try:
            self.journal.begin_generation(action.generation, action.rank_nodes)
            # what the store holds beyond the restore point belongs to a future that will not happen
            mark_generation(self.run_dir.checkpoints, action.generation, self.state.restore.step)
        except (sqlite3.Error, OSError, HeadwayError) as error:
            log.error("cannot begin a generation", generation=action.generation, error=str(error))
            self._handle(NotBegun(action.generation))

    def _find_durable(self, max_step: int | None) -> DurableFound:
        try:
            found = newest(
                self.run_dir.checkpoints,
                world_size=self.config.parallel.world_size,
                max_step=max_step,
            )
        except (OSError, HeadwayError) as error:
            log.error("cannot tell the newest checkpoint", error=str(error))
            return DurableFound(None, trouble=str(error))
        return DurableFound((found.step, str(found.path)) if found else None)

    def _restart_ended(self) -> None:
        """Start executors that are known to have died, without waiting for their silence; once each."""
        for node, (endpoint, _) in self._clients.items():
            if (
                endpoint not in self._restarted
                and not self._outcome
                and self.engine.has_ended(node)
            ):
                self._restarted.add(endpoint)
                self._carry_out(Log("executor_ended", {"node": node}), time.monotonic())
                self._restart(node)

    def _restart(self, node: int) -> None:
        try:
            self.engine.start_node(node)
        except NodeLost:
            self._handle(NodeUnavailable(node))
        except HeadwayError as error:
            log.error("cannot start the node", node=node, error=str(error))

    def _finish(self, action: Finish, now: float) -> None:
        log.info("the run is over", outcome=action.outcome, detail=action.detail)
        # first: on a full disk the executors must hear of the end all the same
        self._outcome = action.outcome
        try:
            self.journal.event(
                "run_over",
                {"outcome": action.outcome, "detail": action.detail, "step": self.state.step},
                now,
            )
            self.journal.set_fact("outcome", action.outcome)
            self.journal.set_fact("detail", action.detail)
        except sqlite3.Error as error:
            log.error("the journal cannot take the end of the run", error=str(error))
        self._tick()
        self._service.after(1.0, self._service.stop)  # let the notes leave, answer a last status

    # ---- requests -----------------------------------------------------------------------------
    def _verdict(self, message: Verdict, peer: bytes) -> None:
        del peer
        now = time.monotonic()
        self._carry_out(
            Log(
                "verdict",
                {
                    "kind": message.kind,
                    "node": message.node,
                    "rank": message.rank,
                    "pid": message.pid,
                    "remedy": message.remedy,
                    "is_open": message.is_open,
                },
            ),
            now,
        )
        if message.is_open and message.action == "stop_run":
            self._handle(Hopeless(f"{message.kind}: {message.remedy}; see {self.run_dir.logs}"))
        if message.is_open and message.kind in ACTED_ON and not self.state.paused:
            self._handle(
                Suspicion(
                    node=message.node,
                    pid=message.pid,
                    generation=message.generation,
                    kind=message.kind,
                )
            )
