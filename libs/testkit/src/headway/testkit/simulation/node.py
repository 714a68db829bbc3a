"""A simulated node: the processes of a machine, kept by a real ``Guardian``.

Time is a number. Every event goes through ``Node.handle``, which carries out what the guardian
wants, late or not at all where a disturbance says so, and checks after each event what must always
hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from headway.common.decide import Action, Done, Event, Failed
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import NodeBeat, NodeCheck, Seals
from headway.common.wire.messages.executor import (
    CheckNode,
    DriverBeat,
    KillWorker,
    ReadSeals,
    RestartService,
)
from headway.common.wire.messages.service import ServiceBeat
from headway.controller.executor import node_events as on
from headway.controller.executor.guardian import SERVICES, Guardian, NodeFacts
from headway.testkit.simulation.lease import Lease
from headway.testkit.simulation.machine import Machine
from headway.testkit.simulation.processes import Process, Worker
from headway.trainer.config import RunConfig

RUN_ID = "r"
PULSE_S = 0.5  # between two beats of a node, or of a rank, in which nothing has changed
CHECK_S = 5.0  # until a check of the machine is done
CALM_S = 2.0  # between two beats of a service or a standby


class Node(Machine):
    """A machine whose executor is a ``Guardian``; the public switches are disturbances.

    Args:
        number: of the node.
        config: of the run.
        lease: which all nodes share.
        chance: decides what is random.
        is_fresh: its first executor begins the run.
        import_s: until a service beats, or a worker says hello.
        watch_s: between two looks at its processes.
    """

    fork_fails = standbys_die = files_fail = claim_fails = False
    check_fails = False
    folder = "there"
    can_read_lease = True

    def __init__(
        self,
        number: int,
        config: RunConfig,
        lease: Lease,
        chance: random.Random,
        *,
        is_fresh: bool = False,
        import_s: float = 2.0,
        watch_s: float = 0.25,
    ) -> None:
        super().__init__(number)
        self.config, self.lease, self.random = config, lease, chance
        self._import_s, self._watch_s, self._watch_at = import_s, watch_s, 0.0
        self.send: Callable[[Message], None] = lambda _: None
        self.facts = NodeFacts(number, RUN_ID, config, is_fresh=is_fresh)
        self.guardian = Guardian(self.facts)
        self.arenas: dict[int, set[int]] = {}
        self.flipped: set[tuple[int, int]] = set()
        """(rank, step) of snapshots with a flipped bit."""
        self.damaged: set[int] = set()
        """Ranks whose arena cannot be read."""
        self.forks: list[on.Fork] = []
        self.memory = on.Memory()
        self.actions: list[tuple[float, Action]] = []
        self.starts: dict[str, list[float]] = {}
        self.asked_forks: list[float] = []
        self.claims: list[int] = []
        self.outcome = ""
        self.incarnation = self.next_worker = 0
        self.follows = 0
        """The epoch of the driver that it is connected to."""
        self.checked = (-1, 0.0)
        """Number of the newest check of this executor, and when it was begun."""
        self.has_given_way = False
        """That check was ended without a result, since the node was given ranks."""
        self._later: list[tuple[float, Event]] = []
        self._sent_version, self._sent_at = -1, -1.0

    def wipe(self) -> None:
        super().wipe()
        self.arenas, self.flipped, self.damaged, self.forks = {}, set(), set(), []
        self.memory, self.incarnation, self.follows = on.Memory(), 0, 0

    def begin_executor(self) -> None:
        """It finds what the one before wrote down, and what runs."""
        self.incarnation += 1
        living = self.living()
        services = tuple((p.name, w) for w, p in living.items() if not isinstance(p, Worker))
        facts = replace(self.facts, incarnation=self.incarnation)
        self.facts = replace(self.facts, is_fresh=False)
        self.guardian = Guardian(facts, replace(self.memory, services=services), living)
        workers = self.guardian.workers
        workers.next_worker = self.next_worker = max(workers.next_worker, self.next_worker)
        self._later, self.follows, self._sent_version = [], 0, -1
        self.checked, self.has_given_way = (-1, 0.0), False
        for process in living.values():
            process.said_at = -1.0

    @property
    def workers(self) -> list[Worker]:
        """Its living workers."""
        found = self.processes.values()
        return [p for p in found if isinstance(p, Worker) and p.state != "Z"]

    # ---- time ---------------------------------------------------------------------------------
    def tick(self, now: float) -> None:
        """Let time pass until ``now``."""
        self.now = now
        if self.is_lost or now < self.asleep_until:
            return
        if is_watching := now >= self._watch_at:
            self._watch_at = now + self._watch_s
        if is_watching or self.executor is None or self.executor.state == "Z":
            self.watch_executor()
        if not self.is_up or self.outcome:
            return
        if self._later:
            due = [event for at, event in self._later if at <= now]
            self._later = [(at, event) for at, event in self._later if at > now]
            for event in due:
                self.handle(event)
        self._talk()
        if is_watching:
            self._look()
        self._beat()

    def _talk(self) -> None:
        for process in list(self.processes.values()):
            if not process.is_up(self.now, self._import_s):
                continue
            if isinstance(process, Worker):
                pause_s = PULSE_S if process.rank >= 0 else CALM_S
                if process.news == process.said and self.now - process.said_at < pause_s:
                    continue
                process.said, process.said_at = process.news, self.now
                self.handle(on.WorkerReported(process.beat()))
                if self.standbys_die:
                    process.kill()
            elif process.name != "driver" and self.now - process.said_at >= CALM_S:
                process.turns, process.said_at = process.turns + 1, self.now
                if process.name != "zygote":
                    beat = ServiceBeat(
                        name=process.name,
                        pid=process.pid,
                        start_ticks=process.id.start_ticks,
                        alive_seq=process.turns,
                        progress=0,
                    )
                    self.handle(on.ServiceReported(beat))

    def _look(self) -> None:
        states = {
            who: self.processes[who].state if who in self.processes else "X"
            for who in self.guardian.watched()
        }
        zygote, seen = self._zygote(), None
        if zygote is not None and zygote.turns:
            seen = on.ZygoteSeen(zygote.id, zygote.turns, tuple(self.forks[-24:]))
        self.handle(on.Looked(states, {}, seen))
        lease = self.lease.view if self.folder == "there" and self.can_read_lease else None
        self.handle(on.FolderSeen(self.folder, lease))  # type: ignore[arg-type]
        self.processes = self.living()
        view = self.guardian.leading.view
        holder = view.holder if view is not None else None
        if holder is not None and holder.epoch != self.follows:
            self.follows, self._sent_version = holder.epoch, -1
            self.guardian.known_version = -1

    def _zygote(self) -> Process | None:
        return next((p for p in self.living().values() if p.name == "zygote"), None)

    # ---- the executor -------------------------------------------------------------------------
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
                started = on.Started(action, self.start(name, action.epoch))
                if not delay_s:
                    return [started]
                self._later.append((self.now + delay_s, started))
            case on.Kill(who, signum):
                if who in self.processes:
                    self.processes[who].kill(signum)
            case on.AskForFork(worker):
                return [self._fork(action, worker)]
            case on.ClaimLease(after):
                self.claims.append(after)
                if self.claim_fails:
                    return [Failed(action, "read-only file system")]
                return [on.Claimed(action, self.lease.claim(after))]
            case on.Remember() | on.ForgetArenas() | on.PassOnMonitor() if self.files_fail:
                return [Failed(action, "no space left on device")]
            case on.Remember(memory):
                self.memory = memory
                return [Done(action)]
            case on.ForgetArenas():
                self.arenas.clear()
                return [Done(action)]
            case on.PassOnMonitor():
                return [Done(action)]
            case on.Send(message):
                self.send(message)
            case on.EndRun(outcome):
                self.outcome = outcome
            case _:
                pass
        return []

    def _fork(self, action: on.AskForFork, worker: str) -> Event:
        self.asked_forks.append(self.now)
        self.next_worker = self.guardian.workers.next_worker
        workers = self.guardian.workers
        coming = len(workers.members) + len(workers.asked) + len(workers.orphans)
        assert coming <= self.guardian.wanted, f"{coming} workers on their way"
        zygote = self._zygote()
        if zygote is None:
            return Failed(action, "connection refused")
        if not zygote.is_hung:
            who = None if self.fork_fails else self.start(worker)
            self.forks.append(on.Fork(worker, who, "try again" if self.fork_fails else ""))
        return Done(action)

    def _beat(self) -> None:
        """Full while the driver lacks something; at every change, else periodically."""
        guardian = self.guardian
        is_new = guardian.version != self._sent_version
        if not self.follows or not (is_new or self.now - self._sent_at >= PULSE_S):
            return
        self._sent_version, self._sent_at = guardian.version, self.now
        is_settled = guardian.workers.is_settled
        is_full = is_settled and guardian.known_version != guardian.version
        services = {name: who.pid for name, who in guardian.services.processes().items()}
        beat = NodeBeat(
            node=self.number,
            pid=self.executor.pid if self.executor is not None else 0,
            workers=guardian.workers.beats() if is_full else None,
            services=services if is_full else None,
            version=guardian.version if is_settled else 0,
            incarnation=self.incarnation,
            step=guardian.workers.step(),
            trouble=guardian.trouble(),
            run_id=RUN_ID,
            loading_s=guardian.loading_s,
            restarted_for=self.init.ended_for if self.init is not None else "",
            check=self._check(),
        )
        self.send(beat)

    def on_order(self, message: Message) -> bool:
        """Take an order of a driver; False if no executor obeys it."""
        run_id, epoch = getattr(message, "run_id", ""), getattr(message, "epoch", -1)
        if self.is_lost or not self.is_up or not self.guardian.obeys(run_id, epoch):
            return False
        match message:
            case DriverBeat():
                self.handle(on.DriverReported(message))
                if message.active and not self._is_check_done():
                    self.has_given_way = True
            case ReadSeals():
                self.send(self._seals(message.generation))
            case RestartService():
                self.handle(on.ServiceBlamed(message.service, message.reason, message.pid))
            case KillWorker():
                self.handle(on.WorkerUnwanted(message.worker))
            case CheckNode() if message.number > self.checked[0]:
                self.checked, self.has_given_way = (message.number, self.now), False
        return True

    def _is_check_done(self) -> bool:
        return self.has_given_way or self.now - self.checked[1] >= CHECK_S

    def _check(self) -> NodeCheck | None:
        if self.checked[0] < 0:
            return None
        is_done = self._is_check_done()
        failed = ("shm",) if is_done and self.check_fails and not self.has_given_way else ()
        reason = "it was given ranks" if self.has_given_way else ""
        return NodeCheck(number=self.checked[0], is_done=is_done, failed=failed, reason=reason)

    def _seals(self, generation: int) -> Seals:
        return Seals(
            node=self.number,
            generation=generation,
            sealed={r: tuple(sorted(s)) for r, s in self.arenas.items() if r not in self.damaged},
            damaged={r: f"arena-{r}.bin: its header is damaged" for r in sorted(self.damaged)},
            run_id=RUN_ID,
        )

    # ---- what must always hold ----------------------------------------------------------------
    def check(self) -> None:
        """After every event of the guardian.

        Raises:
            AssertionError: naming what does not hold.
        """
        guardian, workers = self.guardian, self.guardian.workers
        names = [process.name for process in self.living().values()]
        for name in SERVICES:
            assert names.count(name) <= 1, f"two processes of {name}"
        trouble = str(guardian._content[2])
        for service in guardian.services.kept.values():
            assert (service.process is None) == (service.status in ("down", "asked")), service
            if service.status == "down" and service.restarts:
                assert service.name in trouble, f"silent about {service.name}"
        is_short = len(workers.members) < guardian.wanted
        can = guardian.services.is_serving("zygote") and (
            workers.asked or workers.backoff.failures == 0
        )
        if is_short and not can and guardian.refill:
            assert trouble, f"silent about {guardian.wanted} workers"
        if self.folder != "there" and guardian._folder.seen.state != "there":
            assert "folder" in trouble

    @property
    def is_whole(self) -> bool:
        """Every service serves, every worker is there, and nothing is complained about."""
        services = self.guardian.services
        return (
            self.is_up
            and all(services.is_serving(name) for name in SERVICES)
            and len(self.guardian.workers.members) >= self.guardian.wanted
            and not self.guardian.trouble()
        )
