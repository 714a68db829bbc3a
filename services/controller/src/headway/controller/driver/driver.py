"""One per run: receives reports, lets ``RunState`` decide, and carries the actions out.

It holds the run's lease and renews it from its loop, so a driver that hangs loses it. It keeps
nothing that a successor could not find again: generations, commands, reports and ``Memory`` are in
the journal, the rest is in the executors' beats. What may hang with the run's file system (journal,
lease, checkpoints, log) and the engine have threads of their own; only a command waits up to
``JOURNAL_LIMIT_S`` for the journal.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from headway.common.config import load
from headway.common.decide import Failed
from headway.common.log import get_logger
from headway.common.node.failpoints import configure
from headway.common.node.machine import boot_id, process_space
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths, RunDir
from headway.common.paces import LEASE_RENEW_S
from headway.common.plan.topology import Topology
from headway.common.wire.admission import Admission
from headway.common.wire.descriptors import HandshakeLimiter
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import (
    Command,
    GetStatus,
    MonitorBeat,
    NodeBeat,
    Relay,
    Report,
    Seals,
    WorkerGone,
)
from headway.common.wire.messages.executor import StopRun
from headway.common.wire.messages.health import Verdict, VerdictTaken
from headway.common.wire.server import BACKLOG, Server
from headway.common.wire.service import Service
from headway.common.wire.side_thread import ThreadPerKind
from headway.controller.decisions.events import (
    Answer,
    Finish,
    Input,
    NodeRebooted,
    Start,
    Tick,
)
from headway.controller.decisions.state import RunState
from headway.controller.driver.actions import ActionRunner
from headway.controller.driver.clocks import RunClock
from headway.controller.driver.connections import Connections
from headway.controller.driver.durable import Checkpoints, newest_mark
from headway.controller.driver.engine_probe import EngineProbe
from headway.controller.driver.initial_state import NETWORK, begin
from headway.controller.driver.inputs import InputRecorder, begin_text, encode
from headway.controller.driver.join_server import JoinServer, Member, members_of
from headway.controller.driver.leadership import Leadership
from headway.controller.driver.noted import Noted
from headway.controller.driver.requests import Requests
from headway.controller.driver.run_metrics import RunMetrics
from headway.controller.driver.verdict_events import journal_fields, judged
from headway.controller.journal.journal import Journal
from headway.controller.journal.reports import Reports
from headway.controller.journal.rows import ClockReading
from headway.controller.journal.writer import JournalWriter
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.choose import engine_of, topology_of
from headway.launch.lease.base import Holder
from headway.trainer.config import RunConfig

TICK_S = 0.1
GATHER_S = 0.005  # with many nodes, messages are collected for this long and handled together
MANY_NODES = 512
FLUSH_S = 0.1
ENDED_S = 0.25
"""How often the engine is asked whether the inits of silent nodes have ended."""
ORPHANS_S = 2.0
"""How often the engine is asked about the other nodes, whose executors are well."""
LINGER_S = 3.0
"""How long a driver whose run is over keeps answering, so that every executor learns of the end."""
CLOSE_LIMIT_S = 4.0
"""For the last records; with ``LINGER_S`` less than executors wait for a driver's end."""

log = get_logger("driver")


class Driver:
    """``run`` returns when the run is over, or when another driver leads it.

    Raises:
        SupersededError: another driver leads the run already.
    """

    def __init__(self, run_dir: Path, cluster: ClusterFolder, node: int, epoch: int) -> None:
        self.run_dir, self.cluster, self.node = RunDir(run_dir), cluster, node
        self.config = load(RunConfig, files=[self.run_dir.config])
        self._background, self.engine = ThreadPerKind(), engine_of(self.run_dir, cluster)
        self._leadership = Leadership(
            self.run_dir.control, node, epoch, self.engine, self._background
        )
        self._epoch, self._run_id = epoch, self.run_dir.run_id  # a look at a file: once only
        configure(NodePaths(self._run_id, node).failpoints, node=node)
        is_shared = self.run_dir.bundle.exists()
        journal = Journal(self.run_dir.database, epoch=epoch, is_shared=is_shared)
        topology = topology_of(self.run_dir)
        start = self._start(journal, topology, is_shared=is_shared)
        self._clock = RunClock.continued(journal, node, boot_id()) if is_shared else RunClock()
        self._outcome, self._detail = journal.fact("outcome", ""), journal.fact("detail", "")
        members = members_of(journal)
        self._metrics = RunMetrics(self.run_dir, self.config.launch, node, journal.event_names())
        self.state = RunState(start, self.config.limits, time.monotonic())
        self._records = journal  # only makes records here: its thread alone writes
        self._journal = JournalWriter(journal, self._leadership.superseded)
        self._journal.on_damage = lambda why: self.note("journal_damaged", {"reason": why})
        if topology is not None:  # before the generation that is placed on it
            network = {NETWORK: topology.digest}
            self._journal.submit(lambda journal: journal.set_facts(**network))
        self._noted, self._answered = Noted(), Noted()
        self._recorder = InputRecorder(self.state, self._keep_input)
        self._keep_input(self.state.clock_s, encode(start), begin_text(self.config.limits))
        self._reports = Reports(self._journal, journal.num_skipped())
        self._requests = Requests(
            self.run_dir.name,
            self.config,
            self.state,
            self._journal,
            handle=self.handle,
            note=self.note,
            over=lambda: (self._outcome, self._detail),
            num_skipped=lambda: self._reports.num_skipped,
        )
        self._keys = cluster.key_of("driver")
        admission = Admission(cluster.public_of("executor", "monitor", "console"))
        self._server = self._make_server(admission)
        self._joins = self._make_gate(members, admission)
        self.connections = Connections(
            self._server, self.state, self._reports, self._clock, self._run_id, node
        )
        self._requests.connections = self.connections
        self._service = self._make_loop()
        self._actions = self._make_runner()
        self._leadership.note, self._leadership.stop = self.note, self._service.stop
        self._schedule()

    # ---- what it is made of, in the order in which it is made -----------------------------------
    def _start(self, journal: Journal, topology: Topology | None, *, is_shared: bool) -> Start:
        """What the state begins with; from here on no former driver can write."""
        return begin(
            self.config,
            self._run_id,
            self.cluster.nodes,
            self._epoch,
            journal,
            topology=topology,
            marked=newest_mark(self.run_dir.checkpoints) if journal.damage else -1,
            is_joined=is_shared,
            replaces=self.engine.replaces,
            **self._leadership.silence(self.config.recovery.driver_silent_s),
        )

    def _make_server(self, admission: Admission) -> Server:
        """For the run's nodes, its monitor and consoles."""
        handlers = dict.fromkeys((NodeBeat, Relay, Seals, WorkerGone, Report), self._on_message)
        return Server(
            self.config.launch.network.endpoint,
            {
                **handlers,
                GetStatus: self._requests.status,
                Command: self._requests.take,
                Verdict: self._verdict,
                MonitorBeat: self._monitor_beat,
            },
            keys=self._keys,
            allowed=admission,
            # a new driver is found by all within 0.25 s
            backlog=max(BACKLOG, self.cluster.nodes),
        )

    def _make_gate(self, members: dict[int, Member], admission: Admission) -> JoinServer | None:
        """The gate through which machines join; None on this machine alone."""
        joins = JoinServer.of(
            self.run_dir, self.cluster, self.node, self._keys, members, admission, self._journal
        )
        if joins is not None:
            joins.is_leaving, joins.epoch = self.state.is_leaving, self._epoch
            joins.is_alive = self.state.is_alive
            joins.rebooted = lambda node: self.handle(NodeRebooted(node))
        return joins

    def _make_loop(self) -> Service:
        """The loop, with what it reads."""
        nodes = self.cluster.nodes
        gather_s = GATHER_S * min(1.0, nodes / MANY_NODES)
        service = Service("driver", self._server, gather_s=gather_s)
        for thread in (self._journal, self._background):
            service.watch(thread.done_fd, thread.run_callbacks)
        service.on_drain(self.connections.order_saves)
        gates = [self._joins.server] if self._joins is not None else []
        for gate in gates:
            service.watch(gate.socket, gate.handle_ready)
        service.every(TICK_S, HandshakeLimiter([self._server, *gates], clients=nodes).look)
        return service

    def _make_runner(self) -> ActionRunner:
        """Carries out what the state decides."""
        world, folder = self.config.parallel.world_size, self.run_dir.checkpoints
        return ActionRunner(
            node=self.node,
            run_dir=self.run_dir,
            engine=self.engine,
            background=self._background,
            journal=self._journal,
            connections=self.connections,
            joins=self._joins,
            checkpoints=Checkpoints(folder, world, self._background, self.handle),
            handle=self.handle,
            note=self.note,
            answer=self._note_and_answer,
            finish=self._finish,
            leave=self._service.stop,
        )

    def _schedule(self) -> None:
        """Schedule what is done repeatedly."""
        service = self._service
        service.every(LEASE_RENEW_S, self._leadership.renew)
        service.every(TICK_S, self.tick)
        service.every(FLUSH_S, self._reports.flush)
        tools = (self.engine, self.cluster, self.connections, self._background)
        looks = EngineProbe(*tools, self.handle, self.note)
        service.every(ENDED_S, looks.find_ended)
        service.every(ORPHANS_S, lambda: looks.find_orphans(self.state.nodes))
        self._metrics.serve(
            service, self._background, self.state, self._reports, lambda: self._outcome
        )

    def _holder(self) -> Holder:
        """What the lease says of this driver."""
        me = ProcessId.current()
        return Holder(
            self._epoch,
            self.node,
            me.pid,
            me.start_ticks,
            self._server.endpoint,
            self._keys.public.decode(),
            space=process_space(),
            join_endpoint=self._joins.server.endpoint if self._joins is not None else "",
        )

    def run(self) -> int:
        """Drive the run to its end; returns the exit code."""
        self._leadership.begin(self._holder())
        if self._joins is not None:
            self._keep_clock(self._clock.own(self.node, boot_id()))
        self.note("driver_started", {"epoch": self._epoch, "node": self.node})
        if self._outcome:
            self._leadership.finish(self._outcome)
            self._service.after(LINGER_S, self._service.stop)
        log.info("driver is up", epoch=self._epoch, endpoint=self._server.endpoint)
        code = self._service.run()
        self._journal.close(CLOSE_LIMIT_S)
        return code

    # ---- receiving ----------------------------------------------------------------------------
    def tick(self) -> None:
        """Let time pass for the state; say that the run is over while it is."""
        if self._outcome:
            self.connections.send_all(
                StopRun(epoch=self._epoch, outcome=self._outcome, run_id=self._run_id)
            )
            return
        self.handle(Tick())
        self.connections.refresh()
        if self._joins is not None and self.state.generation >= 0:
            self._leadership.resign_if_cut_off(self.connections)

    def _on_message(self, message: Message, peer: bytes) -> None:
        if getattr(message, "run_id", self._run_id) not in ("", self._run_id):
            return
        if not self.state.knows(getattr(message, "node", -1)):
            return
        self.connections.received(message, peer)
        if isinstance(message, Report):
            if message.incarnation == self.connections.incarnation(message.node):
                self._reports.take(message)
        elif isinstance(message, (NodeBeat, Relay, Seals, WorkerGone)):
            self.handle(message)
        if isinstance(message, NodeBeat):
            self.connections.answer(message, peer)
            self._compare_clock(message)

    def _compare_clock(self, beat: NodeBeat) -> None:
        """Keep what a node's clock is to the run's; that of this driver's node is known."""
        is_newest = beat.incarnation == self.connections.incarnation(beat.node)
        if self._joins is not None and beat.node != self.node and is_newest:
            self._keep_clock(self._clock.compare(beat, self._joins.boot_of(beat.node)))

    def _keep_clock(self, reading: ClockReading | None) -> None:
        if reading is not None:
            self._journal.append(self._records.clock_record(reading))

    def _monitor_beat(self, message: MonitorBeat, peer: bytes) -> None:
        if message.run_id == self._run_id and message.node == self.node:
            self.connections.set_monitor(message, peer)

    def _verdict(self, message: Verdict, peer: bytes) -> None:
        self.connections.monitor_peer = peer
        if self._noted.is_new(message.id, message.revision):  # it repeats until it is answered
            self.note("verdict", journal_fields(message))
        if not message.is_open or self._outcome:
            self.answer(Answer(message.id, message.revision, "none: it is over"))
            return
        if message.taken and self._answered.knows(message.id):
            return  # more is known of what was acted on already
        trouble, has_begun = self.state.troubles().get(message.node, ""), self.state.generation >= 0
        event = judged(message, self.run_dir, trouble, has_begun=has_begun)
        if event is not None:  # else the monitor repeats it
            self.handle(event)

    # ---- acting -------------------------------------------------------------------------------
    def handle(self, event: Input) -> None:
        """Let the state decide on an event, and carry out what it decides."""
        if self._outcome:
            return
        for action in self._recorder.handle(event, time.monotonic()):
            try:
                self._actions.carry_out(action)
            except Exception as error:  # the next action must not be lost with this one
                log.exception("an action failed", action=type(action).__name__)
                self.handle(Failed(action, f"{type(error).__name__}: {error}"))

    def note(self, event: str, fields: dict[str, Any]) -> None:
        """Record an event in the journal and in the log."""
        self._journal.append(self._records.event_record(event, fields, self._clock.now_s()))
        self._metrics.feed(event)
        log.info(event, **fields)

    def _note_and_answer(self, action: Answer) -> None:
        if action.taken and self._answered.is_new(action.id, action.revision):
            self.note("verdict_answered", {"id": action.id, "taken": action.taken})
        self.answer(action)

    def answer(self, action: Answer) -> None:
        """Inform the monitor of what was done about a verdict."""
        self.connections.to_monitor(
            VerdictTaken(id=action.id, revision=action.revision, taken=action.taken)
        )

    def _keep_input(self, clock: float, event: bytes, decided: str) -> None:
        self._journal.append(self._records.input_record(clock, event, decided))

    def _finish(self, action: Finish) -> None:
        fields = {"outcome": action.outcome, "detail": action.detail, "step": self.state.step}

        def then(_result: object, error: str) -> None:
            if error:
                self.handle(Failed(action, error))
                return
            self.note("run_over", fields)
            self._outcome, self._detail = action.outcome, action.detail
            self._leadership.finish(self._outcome)
            self.tick()
            self._service.after(LINGER_S, self._service.stop)

        self._journal.submit(
            lambda journal: journal.set_facts(outcome=action.outcome, detail=action.detail), then
        )
