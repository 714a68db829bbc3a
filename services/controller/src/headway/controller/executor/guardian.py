"""Everything an executor decides about its node: (state, event, now) -> actions.

There is no clock, process, socket or file in here. The parts are the services (``services``, and
``leader_services`` of the node that leads), the workers (``worker_table``), the driver's lease
(``election``) and the run's folder (``run_folder``); this module passes events to them, keeps what
a successor needs, and says in ``trouble`` why the node cannot do what it should.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec
from headway.common.decide import Action, AwakeClock, Done, Event, Failed, Log
from headway.common.node.process import ProcessId
from headway.common.wire.messages.executor import DriverBeat, WorkerBeat
from headway.controller.executor.election import LeaseCandidate
from headway.controller.executor.leader_services import LeaderServices, leader_services
from headway.controller.executor.node_events import (
    AskForFork,
    Claimed,
    ClaimLease,
    DriverReported,
    FolderSeen,
    ForgetArenas,
    Looked,
    Memory,
    PassOnMonitor,
    Remember,
    ServiceBlamed,
    ServiceReported,
    Started,
    StartService,
    Trouble,
    WorkerLeft,
    WorkerReported,
    WorkerUnwanted,
    ZygoteSeen,
)
from headway.controller.executor.run_folder import RunFolder
from headway.controller.executor.services import Services
from headway.controller.executor.worker_table import WorkerTable
from headway.trainer.config import RunConfig

SERVICES = ("dataloader", "ckpt_store", "agent", "zygote")
LONGEST_STEP_S = 1.0
"""Between two events the own clock advances at most by this: a longer gap is the executor's own
stall, which is not held against anybody."""
AGAIN_S = 1.0  # pause before a state file that could not be written is tried again


@dataclass(frozen=True)
class NodeFacts:
    """What does not change while a run is on a node."""

    node: int
    run_id: str
    config: RunConfig
    incarnation: int = 1
    is_fresh: bool = False
    """The run was attached just now, not found by a restarted executor."""
    is_alone: bool = False
    """No other node carries the run."""


class Guardian:
    """``handle`` takes every event; ``now`` is any monotonic clock, in seconds."""

    def __init__(
        self,
        facts: NodeFacts,
        memory: Memory | None = None,
        living: Collection[ProcessId] = (),
    ) -> None:
        self.facts = facts
        limits, launch = facts.config.recovery, facts.config.launch
        memory = memory or Memory()
        self._clock = AwakeClock()
        self.epoch = memory.epoch
        self._saved: Memory | None = None
        self._saving: Memory | None = None
        self._save_again_at = 0.0
        self._save_error = ""
        self.is_ending = False
        self.active = facts.node < launch.nodes
        self.refill = True
        self._monitor = self._monitor_wanted = ("", "")
        self._retry_files_at = 0.0
        self._arenas_to_forget = False
        self._beat_at = 0.0
        self.known_version = -1
        self._folder = RunFolder(limits.folder_gone_s)
        self._troubles: dict[str, str] = {}
        self.services = Services(limits.service_silent_s, limits.service_start_s)
        self.workers = WorkerTable(
            facts.node,
            limits.fork_limit_s,
            next_worker=memory.next_worker,
            orphans=dict(memory.workers),
        )
        self.leading = LeaseCandidate(
            facts.node,
            limits.driver_silent_s,
            epoch=memory.leading,
            is_fresh=facts.is_fresh,
            is_alone=facts.is_alone,
        )
        names = leader_services(facts.config)
        self._leader = LeaderServices(names, self.services, self.leading)
        self._adopt(memory, living)
        self.version, self._content = 0, self._now_content()

    def _adopt(self, memory: Memory, living: Collection[ProcessId]) -> None:
        now = self._clock.now
        known = {name: process for name, process in memory.services if process in living}
        for name in SERVICES:
            self.services.keep(name, now, known.get(name))
        for name in self._leader.names if memory.leading else ():
            self._leader.keep(name, memory.leading, known.get(name), now)
        self.services.recall(memory)
        for name in known.keys() - self.services.kept.keys():
            # adopted for a moment, so that it is asked to end like any other
            self._leader.keep(name, -1, known[name], now)
            self.services.retire(name, 0.0)

    # ---- what others ask ----------------------------------------------------------------------
    def obeys(self, run_id: str, epoch: int) -> bool:
        """Whether a driver's message is for this run and from the newest driver known."""
        if run_id != self.facts.run_id or epoch < self.epoch or self.is_ending:
            return False
        self.epoch = epoch
        return True

    def watched(self) -> set[ProcessId]:
        """The processes whose state the next ``Looked`` must report."""
        return {
            *self.services.processes().values(),
            *self.services.leaving,
            *self.workers.processes().values(),
        }

    @property
    def wanted(self) -> int:
        """How many workers the node should have, standbys included."""
        launch = self.facts.config.launch
        return launch.standbys + (launch.ranks_per_node if self.active else 0)

    @property
    def driver_silent_s(self) -> float:
        """How long the drivers were silent."""
        return self._clock.now - self._beat_at

    @property
    def loading_s(self) -> float | None:
        """How long the zygote has been loading torch; None: it can fork, or is not up."""
        return self.services.starting_s("zygote", self._clock.now)

    def trouble(self) -> str:
        """Why the node cannot do what it should, as sentences; empty while it can."""
        parts = [
            *self.services.trouble(),
            *self.workers.trouble(self.wanted if self.refill else 0),
        ]
        if not self.services.is_serving("zygote") and len(self.workers.members) < self.wanted:
            parts.append("torch is being loaded: no worker can be forked yet")
        parts += [*self.leading.trouble(), *self._folder.trouble()]
        if self._save_error:
            parts.append(f"the executor's state cannot be written: {self._save_error}")
        parts += [text for text in self._troubles.values() if text]
        return "; ".join(parts)

    # ---- events -------------------------------------------------------------------------------
    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event; returns what to do, in order."""
        self._clock.advance(now, LONGEST_STEP_S)
        if self.is_ending:
            return []
        actions = self._take(event, self._clock.now)
        if not self.is_ending:
            actions += self._due(self._clock.now)
        content = self._now_content()
        if content != self._content:
            self._content = content
            self.version += 1
        return actions

    def _take(self, event: Event, now: float) -> list[Action]:
        match event:
            case Looked():
                return self._looked(event, now)
            case WorkerReported():
                self.workers.receive(event.beat, now)
            case ServiceReported():
                self.services.receive(event.beat, now)
            case DriverReported():
                return self._driver_spoke(event.beat, now)
            case FolderSeen():
                return self._folder_seen(event, now)
            case WorkerLeft():
                return self.workers.left(event.left)
            case WorkerUnwanted():
                return self.workers.kill(event.worker, "the driver ordered it")
            case ServiceBlamed():
                process = self.services.process(event.service)
                if event.pid and (process is None or process.pid != event.pid):
                    return []  # the order was late: another process serves by now
                return self.services.blame(event.service, event.reason, now)
            case Trouble():
                self._troubles[event.kind] = event.text
            case Started():
                return self.services.started(event.action, event.process, now)
            case Claimed():
                return self._leader.claimed(event.epoch, now)
            case Done():
                self._done(event.action)
            case Failed():
                return self._failed(event, now)
        return []

    def _looked(self, event: Looked, now: float) -> list[Action]:
        zygote = self.services.process("zygote")
        states = dict(event.states)
        actions = self.services.look(states, now)
        if self.services.process("zygote") != zygote:
            self.workers.zygote_ended()
        elif event.zygote is not None and event.zygote.process == zygote:
            actions += self._zygote_seen(event.zygote, now)
        actions += self.workers.look(states, event.words, now)
        late = self.workers.unanswered(now)
        if late is not None and self.services.is_serving("zygote"):
            why = f"it left the fork of {late} unanswered"
            actions += self.services.blame("zygote", why, now)
            actions += self.workers.not_forked(late, why, now)
        return actions

    def _zygote_seen(self, seen: ZygoteSeen, now: float) -> list[Action]:
        self.services.moved("zygote", seen.process, seen.turns, now)
        return self.workers.forked(seen.forks, now)

    def _driver_spoke(self, beat: DriverBeat, now: float) -> list[Action]:
        self._beat_at = now
        self.known_version = beat.known_version
        if self.active and not beat.active:
            self._arenas_to_forget = True
        self.active, self.refill = beat.active, beat.refill
        if beat.monitor_endpoint:  # a new driver does not know it yet: the old one may still serve
            self._monitor_wanted = (beat.monitor_endpoint, beat.monitor_key)
        if beat.active:
            self._arenas_to_forget = False
        return []

    def _folder_seen(self, event: FolderSeen, now: float) -> list[Action]:
        if event.lease is not None:
            self.leading.see(event.lease, now)
            if event.lease.holder is not None:
                self.epoch = max(self.epoch, event.lease.holder.epoch)
        actions = self._folder.see(event, now)
        self.is_ending = self._folder.is_given_up
        return actions

    def _done(self, action: Action) -> None:
        match action:
            case Remember():
                self._saved, self._saving, self._save_error = action.memory, None, ""
            case ForgetArenas():
                self._arenas_to_forget = False
            case PassOnMonitor():
                self._monitor = (action.endpoint, action.server_key)
            case _:
                pass

    def _failed(self, event: Failed, now: float) -> list[Action]:
        match event.action:
            case StartService():
                return self.services.not_started(event.action, event.error, now)
            case AskForFork():
                return self.workers.not_forked(event.action.worker, event.error, now)
            case ClaimLease():
                self.leading.not_claimed(event.error, now)
            case Remember():
                is_new = self._save_error != event.error
                self._saving, self._save_error = None, event.error
                self._save_again_at = now + AGAIN_S
                fields = {"reason": event.error}
                return [Log("state cannot be written", fields, level="error")] if is_new else []
            case _:
                self._retry_files_at = now + AGAIN_S
                fields = {"action": type(event.action).__name__, "reason": event.error}
                return [Log("an action failed", fields, level="error")]
        return []

    # ---- what is due --------------------------------------------------------------------------
    def _due(self, now: float) -> list[Action]:
        silent_s, is_readable = now - self._beat_at, self._folder.is_readable
        actions = self._leader.due(now, silent_s=silent_s, is_readable=is_readable)
        actions += self.services.due(now)
        if self.refill and self.services.is_serving("zygote"):
            actions += self.workers.refill(self.wanted, now)
        if now >= self._retry_files_at:
            if self._arenas_to_forget:
                actions.append(ForgetArenas())
            if self._monitor != self._monitor_wanted:
                actions.append(PassOnMonitor(*self._monitor_wanted))
        memory = self.memory()
        if memory != self._saved and self._saving is None and now >= self._save_again_at:
            self._saving = memory
            # first: a successor must not give the same name to another fork
            actions.insert(0, Remember(memory))
        return actions

    # ---- what is kept and sent ----------------------------------------------------------------
    def memory(self) -> Memory:
        """What a successor of this executor needs now."""
        return Memory(
            epoch=self.epoch,
            leading=self.leading.epoch,
            reported=self.services.reported(),
            slow_starts=self.services.slow_starts(),
            services=tuple(self.services.processes().items()),
            workers=tuple(self.workers.processes().items()),
            next_worker=self.workers.next_worker,
            incarnation=self.facts.incarnation,
        )

    def _now_content(self) -> tuple[object, ...]:
        """What a full beat shows, but for the steps."""
        beats: list[WorkerBeat] = [
            msgspec.structs.replace(beat, step=0)  # type: ignore[type-var]
            for beat in self.workers.beats()
        ]
        return tuple(beats), self.services.processes(), self.trouble(), self.workers.is_settled
