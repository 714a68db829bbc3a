"""A node in memory, around a ``Guardian`` that keeps its processes.

The processes start, beat, hang and die.

Time is a number. Every event goes through ``Node.handle``, which carries out what the guardian
wants, late or not at all where a disturbance says so, and checks after each event what must always
hold.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from headway.common.decide import Action, Done, Event, Failed
from headway.common.node.process import ProcessId
from headway.common.wire.messages.executor import DriverBeat, WorkerBeat
from headway.common.wire.messages.service import ServiceBeat
from headway.controller.executor import node_events as on
from headway.controller.executor.guardian import SERVICES, Guardian, NodeFacts
from headway.launch.lease.file import Holder, LeaseView
from headway.trainer.config import LaunchConfig, ParallelConfig, RunConfig

RUN_ID = "0badcafe"
TICK_S = 0.25
IMPORT_S = 2.0  # until a service beats, or a worker says hello


@dataclass
class Process:
    """One process of the node."""

    name: str
    id: ProcessId
    since: float
    state: str = "S"
    is_hung: bool = False
    """It lives and sends nothing."""
    is_killed: bool = False
    is_stuck: bool = False
    """SIGKILL waits, as in state D."""
    turns: int = 0


@dataclass
class Node:
    """A node of two ranks and a standby.

    ``trouble_rate`` is the chance of each disturbance per second.
    """

    seed: int = 0
    node: int = 1
    now: float = 0.0
    spawn_fails: bool = False
    fork_fails: bool = False
    standbys_die: bool = False
    files_fail: bool = False
    folder: str = "there"
    driver_beats: bool = True
    can_read_lease: bool = True
    lease: LeaseView = field(
        default_factory=lambda: LeaseView(1, Holder(1, 0, 9, 9, "tcp://x", "k"))
    )
    claim_fails: bool = False
    active: bool = True

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.config = RunConfig(
            parallel=ParallelConfig(dp=4), launch=LaunchConfig(nodes=2, ranks_per_node=2)
        )
        self.facts = NodeFacts(self.node, RUN_ID, self.config)
        self.guardian = Guardian(self.facts)
        self.processes: dict[ProcessId, Process] = {}
        self.forks: list[on.Fork] = []
        self.memory = on.Memory()
        self.actions: list[tuple[float, Action]] = []
        self.starts: dict[str, list[float]] = {}
        self.asked_forks: list[float] = []
        self.claims: list[int] = []
        self.outcome = ""
        self._pid = 100
        self._later: list[tuple[float, Event]] = []

    # ---- time ---------------------------------------------------------------------------------
    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.now < until and not self.outcome:
            self.pass_time(TICK_S)
            self._later, due = (
                [x for x in self._later if x[0] > self.now],
                [x[1] for x in self._later if x[0] <= self.now],
            )
            for event in due:
                self.handle(event)
            self._talk()
            self._look()

    def pass_time(self, seconds: float) -> None:
        """Time passes and the executor does not run: what was sent meanwhile waits."""
        self.now += seconds
        if self.lease.holder is not None and self.driver_beats:
            holder = self.lease.holder
            beat = int(self.now / TICK_S)
            made = Holder(holder.epoch, holder.node, 9, 9, "tcp://x", "k", beat)
            self.lease = LeaseView(max(self.lease.claimed, holder.epoch), made)

    def _talk(self) -> None:
        for process in list(self.processes.values()):
            is_up = self.now - process.since >= IMPORT_S
            if process.is_hung or process.state not in "S" or not is_up:
                continue
            process.turns += 1
            who = process.id
            if process.name.startswith("n1w"):
                beat = WorkerBeat(
                    worker=process.name, pid=who.pid, start_ticks=who.start_ticks, status="idle"
                )
                self.handle(on.WorkerReported(beat))
                if self.standbys_die:
                    process.state = "Z"
            elif process.name not in ("zygote", "driver"):
                self.handle(
                    on.ServiceReported(
                        ServiceBeat(
                            name=process.name,
                            pid=who.pid,
                            start_ticks=who.start_ticks,
                            alive_seq=process.turns,
                            progress=0,
                        )
                    )
                )
        if self.driver_beats:
            beat_ = DriverBeat(
                epoch=self.lease.holder.epoch if self.lease.holder else 0,
                refill=True,
                active=self.active,
                known_version=self.guardian.version,
                run_id=RUN_ID,
            )
            if self.guardian.obeys(RUN_ID, beat_.epoch):
                self.handle(on.DriverReported(beat_))

    def _look(self) -> None:
        states = {
            who: self.processes[who].state if who in self.processes else "X"
            for who in self.guardian.watched()
        }
        zygote = self._of("zygote")
        seen = None
        if zygote is not None and zygote.turns:
            seen = on.ZygoteSeen(zygote.id, zygote.turns, tuple(self.forks[-24:]))
        self.handle(on.Looked(states, {}, seen))
        lease = self.lease if self.folder == "there" and self.can_read_lease else None
        self.handle(on.FolderSeen(self.folder, lease))  # type: ignore[arg-type]
        self.processes = {w: p for w, p in self.processes.items() if p.state != "Z"}

    def _of(self, name: str) -> Process | None:
        return next((p for p in self.processes.values() if p.name == name and p.state != "Z"), None)

    def start(self, name: str) -> ProcessId:
        """A process of this name appears."""
        self._pid += 1
        who = ProcessId(self._pid, self._pid)
        self.processes[who] = Process(name, who, self.now)
        return who

    # ---- events and actions -------------------------------------------------------------------
    def handle(self, event: Event) -> None:
        """Hand an event to the guardian, and carry out what follows.

        Checks after each event what must always hold.
        """
        events = [event]
        while events:
            for action in self.guardian.handle(events.pop(0), self.now):
                self.actions.append((self.now, action))
                events += self._do(action)
            self.check()

    def _do(self, action: Action) -> list[Event]:
        match action:
            case on.StartService(name):
                self.starts.setdefault(name, []).append(self.now)
                if self.spawn_fails:
                    return [Failed(action, "no space left on device")]
                delay_s = self.random.choice((0.0, 0.5))
                started = on.Started(action, self.start(name))
                if not delay_s:
                    return [started]
                self._later.append((self.now + delay_s, started))
            case on.Kill(who, signum):
                process = self.processes.get(who)
                if process is None or process.is_stuck:
                    return []
                if signum == 9 or not process.is_hung:
                    process.state = "Z"
            case on.AskForFork(worker):
                self.asked_forks.append(self.now)
                workers = self.guardian.workers
                coming = len(workers.members) + len(workers.asked) + len(workers.orphans)
                assert coming <= self.guardian.wanted, f"{coming} workers on their way"
                zygote = self._of("zygote")
                if zygote is None:
                    return [Failed(action, "connection refused")]
                if zygote.is_hung:
                    return [Done(action)]
                who_ = None if self.fork_fails else self.start(worker)
                self.forks.append(on.Fork(worker, who_, "try again" if self.fork_fails else ""))
                return [Done(action)]
            case on.ClaimLease(after):
                self.claims.append(after)
                if self.claim_fails:
                    return [Failed(action, "read-only file system")]
                self.lease = LeaseView(after + 1, self.lease.holder)
                return [on.Claimed(action, after + 1)]
            case on.Remember(memory):
                if self.files_fail:
                    return [Failed(action, "no space left on device")]
                self.memory = memory
                return [Done(action)]
            case on.EndRun(outcome):
                self.outcome = outcome
            case on.ForgetArenas() | on.PassOnMonitor():
                return [Failed(action, "full")] if self.files_fail else [Done(action)]
            case _:
                pass
        return []

    def restart_executor(self) -> None:
        """Let the executor die and another one take over.

        The new one has what was written down and what runs.
        """
        self._later.clear()
        living = {w: p.name for w, p in self.processes.items() if p.state != "Z"}
        found = tuple((name, who) for who, name in living.items() if name[:3] != "n1w")
        self.guardian = Guardian(self.facts, replace(self.memory, services=found), living)

    # ---- what must always hold ----------------------------------------------------------------
    def check(self) -> None:
        """After every event.

        Raises:
            AssertionError: naming what does not hold.
        """
        guardian = self.guardian
        names = [p.name for p in self.processes.values() if p.state != "Z"]
        for name in SERVICES:
            assert names.count(name) <= 1, f"two processes of {name}"
        workers = guardian.workers
        coming = len(workers.members) + len(workers.asked) + len(workers.orphans)
        for service in guardian.services.kept.values():
            assert (service.process is None) == (service.status in ("down", "asked")), service
        is_short = len(workers.members) < guardian.wanted
        can = guardian.services.is_serving("zygote") and (
            workers.asked or workers.backoff.failures == 0
        )
        if is_short and not can and guardian.refill:
            assert guardian.trouble(), f"silent about {coming} of {guardian.wanted} workers"
        for service in guardian.services.kept.values():
            if service.status == "down" and service.restarts:
                assert service.name in guardian.trouble(), f"silent about {service.name}"
        if self.folder != "there" and guardian._folder.state != "there":
            assert "folder" in guardian.trouble()

    @property
    def is_whole(self) -> bool:
        """Every service serves, every worker is there, and nothing is complained about."""
        services = self.guardian.services
        return (
            all(services.is_serving(name) for name in SERVICES)
            and len(self.guardian.workers.members) >= self.guardian.wanted
            and not self.guardian.trouble()
        )
