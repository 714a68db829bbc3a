"""One run on one node, and its guardian.

It informs the guardian of what happens, and carries out what the guardian decides.

A failing action never keeps the others from being done: it comes back to the guardian as
``Failed``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from headway.common.config import load
from headway.common.decide import Action, Done, Event, Failed, Log
from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.node import zygote_beat
from headway.common.node.failpoints import configure
from headway.common.node.process import ProcessId, reap_children
from headway.common.node.run_dir import NodePaths, RunDir, RunLock
from headway.common.node.worker_ends import WorkerEnds
from headway.common.wire.loop import Throttle
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import NodeBeat
from headway.common.wire.messages.executor import DriverBeat
from headway.common.wire.side_thread import SideThread
from headway.controller.executor import node_files
from headway.controller.executor.clock_offset import ClockOffset
from headway.controller.executor.guardian import SERVICES, Guardian, NodeFacts
from headway.controller.executor.leader_services import leader_services
from headway.controller.executor.machine.folder_probe import FolderLook
from headway.controller.executor.machine.machine_check import MachineCheck
from headway.controller.executor.machine.process_probe import ProcessLook
from headway.controller.executor.node_end import NodeEnd
from headway.controller.executor.node_events import (
    AskForFork,
    Claimed,
    ClaimLease,
    ClearAway,
    EndRun,
    FolderSeen,
    ForgetArenas,
    Kill,
    NoteEnd,
    PassOnMonitor,
    Remember,
    Send,
    Started,
    StartService,
    Trouble,
)
from headway.controller.executor.outbox import Outbox
from headway.controller.executor.reach import Reach
from headway.controller.executor.service_commands import NodeServices
from headway.launch.cluster import ClusterFolder
from headway.launch.init.beats import ENV_RESTARTED_FOR
from headway.launch.lease.choose import lease_of
from headway.trainer.config import RunConfig

CALM_S = 1.0
"""The run's folder and its lease are looked at more often once the driver is silent for so long."""
FOLDER_HANGS_S = 5.0
"""A look at the run's folder that takes longer is reported: its file system hangs."""
NEVER_BACK = Log | Send | Kill | NoteEnd
"""Their failure changes nothing: signals and ends are repeated, beats make up for notes."""

log = get_logger("node")


class NodeRun:
    """The run on its node, made when it is attached.

    A restarted executor makes it again, and finds all as it was.

    Args:
        cluster: the cluster of the node.
        node: its number.
        run_dir: the run's folder.
        is_fresh: the run was attached just now.
        send: sends a note to the driver.
        end: ends the run on this node; gets the outcome.
    """

    def __init__(
        self,
        cluster: ClusterFolder,
        node: int,
        run_dir: Path,
        *,
        is_fresh: bool = False,
        send: Callable[[Message], object] = lambda _: None,
        end: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.cluster, self.node = cluster, node
        self.run = RunDir(run_dir)
        self.config = load(RunConfig, files=[self.run.config])
        self.paths = NodePaths(self.run.run_id, node).create()
        self.lock = RunLock.hold(self.run.run_id)
        configure(self.paths.failpoints, node=node)
        self.services = NodeServices(self.run, self.config, self.paths, cluster.path)
        if is_fresh:
            self.services.begin_life()
        self._send, self._end = send, end
        self._files = node_files.MemoryFiles(self.paths.sock_dir)
        self._ends = WorkerEnds(self.paths.shm_dir)
        self._processes = ProcessLook(self.paths)
        self._reach = Reach(self.paths.endpoint)
        self.guardian = self._guardian(is_fresh=is_fresh)
        self.outbox = Outbox(node, self.incarnation)
        self.clock = ClockOffset() if self.run.bundle.exists() else None
        """None where one machine carries the run: it has one clock."""
        self.peers: dict[str, bytes] = {}
        """Worker -> identity of its socket."""
        self.check = MachineCheck(self.run, self.config.health, self.paths)
        self._lease = lease_of(self.run.control)
        self._look_at_folder = FolderLook(run_dir, self.run.config, self._lease)
        self.side_thread = SideThread("node")
        """For what touches the run's folder, which may hang with the file system it lies on."""
        self._is_looking = False
        self._throttle = Throttle()

    def _guardian(self, *, is_fresh: bool) -> Guardian:
        memory = self._files.load(ProcessId.current())
        names = (*SERVICES, *leader_services(self.config))
        living = {n: p for n, p in memory.services if not p.is_terminating()}
        if not is_fresh:
            living = {**node_files.running_services(self.paths, names), **living}
        memory = replace(memory, services=tuple(living.items()))
        free = node_files.next_worker(self.paths, self.run.logs)
        facts = NodeFacts(
            node=self.node,
            run_id=self.run.run_id,
            config=self.config,
            incarnation=self._files.incarnation,
            is_fresh=is_fresh,
            is_alone=self.config.launch.nodes + self.config.launch.spares < 2,
        )
        made = Guardian(facts, memory, living.values())
        made.workers.next_worker = max(made.workers.next_worker, free)
        return made

    @property
    def incarnation(self) -> int:
        """Number of this executor process on its node; its successor's is higher."""
        return self._files.incarnation

    # ---- what happens -------------------------------------------------------------------------
    def handle(self, event: Event) -> None:
        """Let the guardian decide, and carry out what it decides, with all that follows from it."""
        events = deque([event])
        while events:
            for action in self.guardian.handle(events.popleft(), time.monotonic()):
                outcome = self._carry_out(action)
                if outcome is not None:
                    events.append(outcome)

    def look(self) -> None:
        """See how the node's processes are; to be called some 20 times a second."""
        reap_children()
        workers = self.guardian.workers.processes()
        self.handle(self._processes.look(self.guardian.watched(), workers))
        for worker in self.peers.keys() - self.guardian.workers.members.keys():
            del self.peers[worker]
            self.outbox.forget(worker)

    def look_at_folder(self) -> None:
        """Have the run's folder looked at, unless a look is under way. Never blocks."""
        if not self._is_looking:
            self._is_looking = True
            self.side_thread.submit(self._look_at_folder, self._seen)
        elif self.side_thread.busy_s() > FOLDER_HANGS_S:
            self.handle(FolderSeen("unknown", detail="its file system does not answer"))

    def poll_interval_s(self) -> float:
        """How long after one look at the run's folder the next one is due."""
        leading = self.guardian.leading
        if leading.wants_reads:
            return 0.0
        is_calm = self.guardian.driver_silent_s < CALM_S and not leading.is_stale
        return self._lease.calm_look_s if is_calm else self._lease.look_s

    def _seen(self, seen: FolderSeen | None, error: Exception | None) -> None:
        self._is_looking = False
        self.handle(seen or FolderSeen("unknown", detail=_reason(error)))

    # ---- what is to be done -------------------------------------------------------------------
    def _carry_out(self, action: Action) -> Event | None:
        try:
            return self._do(action)
        except Exception as error:
            if not isinstance(action, NEVER_BACK):
                return Failed(action, _reason(error))
            with contextlib.suppress(Exception):  # a disk that takes no line must not stop the next
                if self._throttle.admit(type(action).__name__) is not None:
                    log.warning("an action failed", action=str(action)[:300], reason=str(error))
            return None

    def _do(self, action: Action) -> Event | None:
        match action:
            case StartService() | ClaimLease() | ClearAway():
                self._do_aside(action)
                return None
            case Kill():
                self._processes.note_kill(action.process)
                action.process.kill(action.signum)
                log.info(
                    "signal sent", pid=action.process.pid, signal=action.signum, why=action.why
                )
                return None
            case NoteEnd(end):
                self._ends.add(end, time.monotonic_ns())
                return None
            case Send():
                self._send(action.message)
                return None
            case Log():
                getattr(log, action.level)(action.event, **action.fields)
                return None
            case EndRun():
                self._end(action.outcome)
                return None
            case AskForFork():
                zygote_beat.ask_for_fork(self.paths.socket("zygote"), action.worker)
            case Remember():
                self._files.save(action.memory)
            case ForgetArenas():
                node_files.forget_arenas(self.paths.segments("arena"))
            case PassOnMonitor():
                facts = {"endpoint": action.endpoint, "server_key": action.server_key}
                self._files.write("monitor.json", facts)
        return Done(action)

    def keep_files(self, *, was_emptied: bool) -> None:
        """Write again what was removed from the socket folder; see who cannot be reached there."""
        if was_emptied:
            self.lock.renew()
            self._files.keep()
        self._ends.write()
        self.handle(Trouble("sockets", self._reach.look(self.guardian.services)))

    def _do_aside(self, action: StartService | ClaimLease | ClearAway) -> None:
        """Carry it out on the side thread; the guardian learns what came of it."""

        def then(outcome: Event | None, error: Exception | None) -> None:
            self.handle(outcome or Failed(action, _reason(error)))

        self.side_thread.submit(partial(self._outcome, action), then)

    def _outcome(self, action: StartService | ClaimLease | ClearAway) -> Event:
        match action:
            case StartService():
                return Started(action, self.services.start(action.name, action.epoch))
            case ClaimLease():
                return Claimed(action, self._lease.claim(action.after))
            case ClearAway():
                node_files.clear_away(self.paths, self.run.logs, action.living)
                return Done(action)

    # ---- for the driver -----------------------------------------------------------------------
    def beat(self, *, is_ending: bool = False) -> NodeBeat:
        """All that the driver does not know yet, or only that the node lives and its step."""
        guardian = self.guardian
        is_settled = guardian.workers.is_settled
        is_full = is_settled and guardian.known_version != guardian.version
        services = {n: p.pid for n, p in guardian.services.processes().items()}
        now_ns = time.monotonic_ns()
        clock = self.clock.estimate(now_ns) if self.clock is not None else None
        return NodeBeat(
            node=self.node,
            pid=os.getpid(),
            workers=guardian.workers.beats() if is_full else None,
            services=services if is_full else None,
            # before it is settled, the node has no version that a driver could know
            version=guardian.version if is_settled else 0,
            incarnation=self.incarnation,
            step=guardian.workers.step(),
            trouble=guardian.trouble(),
            run_id=self.run.run_id,
            sent_ns=now_ns if self.clock is not None else 0,
            clock_offset_ns=clock.offset_ns if clock is not None else None,
            clock_uncertainty_ns=clock.uncertainty_ns if clock is not None else None,
            is_ending=is_ending,
            loading_s=guardian.loading_s,
            restarted_for=os.environ.get(ENV_RESTARTED_FOR, ""),
            check=self.check.look(),
        )

    def compare_clock(self, answer: DriverBeat) -> None:
        """Learn from the answer to a beat how far the node's clock is from the run's."""
        if self.clock is not None and answer.echo_ns:
            self.clock.add(answer.echo_ns, answer.run_ns, time.monotonic_ns())

    # ---- the end ------------------------------------------------------------------------------
    def ending(self) -> NodeEnd:
        """What ends the run on this node; the guardian decides nothing any more."""
        self.guardian.is_ending = True
        self.check.close()
        workers, services = self.guardian.workers, self.guardian.services
        found = {**services.processes()}
        leaving = {f"leaving {process.pid}": process for process in services.leaving}
        return NodeEnd(
            self.run,
            self.paths,
            self.lock,
            {**leaving, **found},
            list(workers.processes().values()),
            spare=self.cluster.init(self.node),  # it ends when this executor has
        )


def _reason(error: Exception | None) -> str:
    if isinstance(error, HeadwayError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"
