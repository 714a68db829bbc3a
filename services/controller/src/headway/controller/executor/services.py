"""The services of a node: which should run, which do, and which are to be replaced.

A service is replaced when its process has died, was stopped, or sends no beats any more, and when
the driver blames it. Its successor starts only once it is certain that the process will never run
again.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from headway.common.backoff import Backoff
from headway.common.decide import Action, Log
from headway.common.node.process import DEAD, ProcessId
from headway.common.wire.messages.service import ServiceBeat
from headway.controller.executor.node_events import Kill, Memory, StartService

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
FAILURES_OF_A_LOOP = 3  # in a row: then the service is in trouble also while it runs
HEALTHY_AFTER_S = 10.0  # a service that ran for so long starts over with the first pause
LEAVE_LIMIT_S = 2.0  # between SIGTERM and SIGKILL of a service that another node runs now
KILL_AGAIN_S = 1.0
MOST_DOUBLINGS = 4  # of the time to start, after starts that took longer
NEEDED = ("dataloader", "ckpt_store")
"""The services that ranks wait for."""


@dataclass
class Service:
    """One service that should run, and its process."""

    name: str
    is_reporting: bool = True
    """It sends beats from its start on; another one is only watched once it has sent some."""
    status: str = "down"
    """``down``, ``asked`` (a start is under way), ``up`` or ``ending`` (SIGKILL was sent)."""
    may_start: bool = True
    """The driver is started only with an epoch that was claimed for it."""
    epoch: int = -1
    started_epoch: int = -1
    """The epoch that its process was started with."""
    process: ProcessId | None = None
    since: float = 0.0
    beat_at: float | None = None
    has_reported: bool = False
    """Its process has sent a beat; remembered over the executor's own death."""
    turns: int = -1
    killed_at: float = 0.0
    slow_starts: int = 0
    """Processes in a row that were ended before their first beat; remembered as well."""
    restarts: int = 0
    why: str = ""
    """Why its last process ended, or its start failed."""
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S))


class Services:
    """Times are those of the executor's own clock, see ``Guardian``."""

    def __init__(self, silent_s: float, start_s: float) -> None:
        self._silent_s, self._start_s = silent_s, start_s
        self.kept: dict[str, Service] = {}
        self.leaving: dict[ProcessId, tuple[str, float]] = {}
        """Processes that were asked to end -> their service, and when they are killed."""
        self._starting: set[str] = set()

    # ---- which should run ---------------------------------------------------------------------
    def keep(
        self, name: str, now: float, process: ProcessId | None = None, *, is_reporting: bool = True
    ) -> Service:
        """Keep a service running from now on; ``process`` is the one that already does."""
        if name not in self.kept:
            made = Service(name, is_reporting=is_reporting, since=now, process=process)
            made.status = "up" if process is not None else "down"
            self.kept[name] = made
        return self.kept[name]

    def retire(self, name: str, now: float) -> list[Action]:
        """Keep a service no longer and ask its process to end."""
        service = self.kept.pop(name, None)
        if service is None or service.process is None:
            return []
        self.leaving[service.process] = (name, now + LEAVE_LIMIT_S)
        return [Kill(service.process, signal.SIGTERM, f"{name} runs on another node now")]

    def recall(self, memory: Memory) -> None:
        """Take in what the executor before knew of the services that are kept."""
        slow_starts = dict(memory.slow_starts)
        for name, service in self.kept.items():
            service.has_reported = (name, service.process) in memory.reported
            service.slow_starts = slow_starts.get(name, 0)

    def processes(self) -> dict[str, ProcessId]:
        """Service -> its process, of those that run."""
        return {n: s.process for n, s in self.kept.items() if s.process is not None}

    def reported(self) -> tuple[tuple[str, ProcessId], ...]:
        """Those of ``processes`` that have sent a beat."""
        return tuple((n, p) for n, p in self.processes().items() if self.kept[n].has_reported)

    def slow_starts(self) -> tuple[tuple[str, int], ...]:
        """Service -> how many of its starts in a row were too slow."""
        return tuple((n, s.slow_starts) for n, s in self.kept.items() if s.slow_starts)

    def process(self, name: str) -> ProcessId | None:
        """The process of a service, if it runs."""
        service = self.kept.get(name)
        return service.process if service is not None else None

    def is_serving(self, name: str) -> bool:
        """Whether the service's process has sent a beat."""
        service = self.kept.get(name)
        return service is not None and service.status == "up" and service.beat_at is not None

    def starting_s(self, name: str, now: float) -> float | None:
        """Return how long the process of a service has run without a beat.

        None if it sends them, or there is no process.
        """
        service = self.kept.get(name)
        if service is None or service.status != "up" or service.beat_at is not None:
            return None
        return now - service.since

    # ---- what happens -------------------------------------------------------------------------
    def started(self, action: StartService, process: ProcessId, now: float) -> list[Action]:
        """A start took effect; a service that is not kept any more is ended again."""
        self._starting.discard(action.name)
        service = self.kept.get(action.name)
        if service is None or (service.status, service.epoch) != ("asked", action.epoch):
            self.leaving[process] = (action.name, now + LEAVE_LIMIT_S)
            return [Kill(process, signal.SIGTERM, f"{action.name} is not wanted here any more")]
        service.status, service.process, service.since = "up", process, now
        service.started_epoch = action.epoch
        service.beat_at, service.turns, service.has_reported = None, -1, False
        return []

    def not_started(self, action: StartService, error: str, now: float) -> list[Action]:
        """A start failed: it is tried again after a pause that doubles."""
        self._starting.discard(action.name)
        service = self.kept.get(action.name)
        if service is None or (service.status, service.epoch) != ("asked", action.epoch):
            return []
        return [self._fell(service, f"cannot be started: {error}", now)]

    def receive(self, beat: ServiceBeat, now: float) -> None:
        """Take a beat; one of another process than the kept one does not count."""
        self.moved(beat.name, ProcessId(beat.pid, beat.start_ticks), beat.alive_seq, now)

    def moved(self, name: str, process: ProcessId, turns: int, now: float) -> None:
        """A service's process has counted to ``turns``; standing still is silence."""
        service = self.kept.get(name)
        if service is not None and service.process == process and service.turns != turns:
            service.beat_at, service.turns, service.has_reported = now, turns, True
            service.slow_starts = 0

    def blame(self, name: str, why: str, now: float) -> list[Action]:
        """End a service so that it is started again."""
        service = self.kept.get(name)
        return self._end(service, why, now) if service is not None else []

    # ---- time passes --------------------------------------------------------------------------
    def look(self, states: dict[ProcessId, str], now: float) -> list[Action]:
        """Take in how the processes are; returns what to do and to log."""
        actions: list[Action] = []
        for service in self.kept.values():
            actions += self._look_at(service, states, now)
        for process, (name, kill_at) in list(self.leaving.items()):
            if states.get(process, "R") in DEAD:
                del self.leaving[process]
            elif now >= kill_at:
                self.leaving[process] = (name, now + KILL_AGAIN_S)
                actions.append(Kill(process, signal.SIGKILL, "it did not end when asked to"))
        return actions

    def _look_at(self, service: Service, states: dict[ProcessId, str], now: float) -> list[Action]:
        if service.process is None:
            return []
        state = states.get(service.process, "R")
        if state in DEAD:
            return [self._fell(service, service.why if service.status == "ending" else "died", now)]
        if service.status == "ending":
            if now - service.killed_at < KILL_AGAIN_S:
                return []
            return self._end(service, service.why, now)
        if state == "T":
            return self._end(service, "it was stopped", now)
        silent_s = self._silence(service, now)
        if silent_s is not None:
            service.slow_starts += not service.has_reported
            return self._end(service, f"it sent no beat for {silent_s:.0f} s", now)
        if service.backoff.failures and _has_served(service, now):
            service.backoff.succeed()
        return []

    def _silence(self, service: Service, now: float) -> float | None:
        """How long the service has been silent, once that is too long."""
        if service.beat_at is not None:
            since, limit_s = service.beat_at, self._silent_s
        elif service.has_reported:
            # adopted: it reported to the executor before this one, and needs only to reconnect
            since, limit_s = service.since, 2 * self._silent_s
        elif service.is_reporting:
            # on a machine too busy to load torch in time, another start as short never succeeds
            longer = 2.0 ** min(service.slow_starts, MOST_DOUBLINGS)
            since, limit_s = service.since, self._start_s * longer
        else:
            return None
        return now - since if now - since > limit_s else None

    def _end(self, service: Service, why: str, now: float) -> list[Action]:
        if service.process is None:
            return []
        was_ending = service.status == "ending"
        service.status, service.why, service.killed_at = "ending", why, now
        kill = Kill(service.process, signal.SIGKILL, f"{service.name}: {why}")
        if was_ending:
            return [kill]
        fields = {"name": service.name, "pid": service.process.pid, "reason": why}
        return [kill, Log("ended a service to start it again", fields, level="warning")]

    def _fell(self, service: Service, why: str, now: float) -> Action:
        if _has_served(service, now):
            service.backoff.succeed()
        retry_in_s = service.backoff.pause_s
        service.backoff.fail(now)
        service.status, service.process, service.why = "down", None, why
        service.beat_at = None
        service.restarts += 1
        if service.name == "driver":
            service.may_start = service.epoch > service.started_epoch
        fields = {"name": service.name, "reason": why, "retry_in_s": retry_in_s}
        return Log("service is gone", {**fields, "restarts": service.restarts}, level="warning")

    def due(self, now: float) -> list[Action]:
        """The starts that are due."""
        taken = self._starting | {name for name, _ in self.leaving.values()}
        actions: list[Action] = []
        for service in self.kept.values():
            is_due = service.may_start and service.backoff.is_over(now)
            if service.status == "down" and is_due and service.name not in taken:
                service.status = "asked"
                self._starting.add(service.name)
                actions.append(StartService(service.name, service.epoch))
        return actions

    def trouble(self) -> list[str]:
        """Sentences about services that do not run as they should; stable while nothing changes."""
        found = []
        for service in self.kept.values():
            if not service.why:
                continue
            if service.status in ("down", "ending"):
                found.append(f"{service.name} does not run: {service.why}")
            elif service.name in NEEDED and service.beat_at is None:
                found.append(f"{service.name} is starting again: {service.why}")
            elif service.backoff.failures >= FAILURES_OF_A_LOOP:
                found.append(f"{service.name} is restarted repeatedly: {service.why}")
        return found


def _has_served(service: Service, now: float) -> bool:
    """Whether its process has run for long enough, and reported if such services do."""
    is_old = service.process is not None and now - service.since > HEALTHY_AFTER_S
    return is_old and (service.beat_at is not None or not service.is_reporting)
