"""What an init decides, without clocks, processes or files: ``handle(event, now)`` -> actions.

It keeps one executor running. An executor that ends by itself is restarted, at once the first time
and with growing pauses while it keeps dying early. One that is stopped, frozen by a control group,
or whose event loop sends no beats is killed first. Exit code 0 means that the executor ended on
request; then the init ends too.

Time counts only while the init itself runs: after a stall of its own (the whole node was frozen)
every limit restarts, so that an executor that was frozen too can report first.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from headway.common.backoff import Backoff
from headway.common.decide import Action, AwakeClock, Event, Log
from headway.common.node.process import ProcessId

FROZEN = "F"
"""In place of a state letter: a control group keeps the process from running."""
STALL_S = 1.0
"""A longer pause between two events is the init's own stall."""

_STUCK = {"T": "it is stopped", FROZEN: "its control group is frozen"}
_TRACED = "t"


@dataclass(frozen=True)
class Limits:
    """Seconds."""

    stuck_s: float = 2.0
    """An executor that is stopped or frozen and sends no beat for this long is ended."""
    silent_s: float = 10.0
    """An executor whose loop sends no beat for this long is ended."""
    start_s: float = 60.0
    """An executor that has sent no first beat for this long after its start is ended."""
    healthy_s: float = 10.0
    """An executor that lived this long did not die early."""
    first_pause_s: float = 0.25
    longest_pause_s: float = 5.0
    end_s: float = 40.0
    """An executor that was asked to end is killed after this long; it gives itself 30 s."""
    gone_s: float = 60.0
    """An init whose cluster has had no folder for this long ends."""


# ---- events --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Started(Event):
    """There is an executor: a new one, or a living one that was adopted."""

    process: ProcessId
    is_adopted: bool = False
    age_s: float = 0.0
    sends_beats: bool = True
    """Whether its beats can arrive: False if it was not started by an init."""


@dataclass(frozen=True)
class NotStarted(Event):
    """No executor could be started; ``is_gone`` if the cluster's folder is absent."""

    reason: str
    is_gone: bool = False


@dataclass(frozen=True)
class BeatReceived(Event):
    """The executor's event loop has sent beats."""


@dataclass(frozen=True)
class Looked(Event):
    """The executor's state letter, or ``FROZEN``; empty while there is none."""

    state: str = ""


@dataclass(frozen=True)
class Ended(Event):
    """The executor has ended, or will never run again.

    ``code`` is None if unknown, negative for a signal.
    """

    code: int | None
    last_line: str = ""


@dataclass(frozen=True)
class StopRequested(Event):
    """The init was asked to end, by a signal."""

    by: str


# ---- actions -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Start(Action):
    """Adopt the living executor of this node, or start one.

    Answered by ``Started`` or ``NotStarted``.
    """


@dataclass(frozen=True)
class Kill(Action):
    """End the executor with SIGKILL."""


@dataclass(frozen=True)
class ForwardSigterm(Action):
    """Send SIGTERM to the executor."""


@dataclass(frozen=True)
class Exit(Action):
    """Exit."""

    code: int


class Core:
    """The state; every change goes through ``handle``."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._clock = AwakeClock()
        self.process: ProcessId | None = None
        self._started_at = self._beat_at = self._asked_at = 0.0
        self._stuck_since: float | None = None
        self._gone_since: float | None = None
        self._sends_beats, self._limit_s = False, self.limits.start_s
        self._state = ""
        self._killed_for = ""
        self.ended_for = ""
        """How the last executor ended."""
        self._is_starting = self._is_asked = self._is_leaving = False
        self._not_started_for = ""
        self._may_be_quick = True
        """Whether the next start needs no pause."""
        self._backoff = Backoff(self.limits.first_pause_s, self.limits.longest_pause_s)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event; returns what to do, in order. Nothing is done after ``Exit``."""
        self._advance(now)
        if self._is_leaving:
            return []
        actions = self._take(event)
        return actions if self._is_leaving else actions + self._due()

    def _advance(self, now: float) -> None:
        if self._clock.advance(now, STALL_S, stall_s=0.0) > STALL_S:
            self._beat_at, self._stuck_since = self._clock.now, None

    def _take(self, event: Event) -> list[Action]:
        match event:
            case Started():
                return self._started(event)
            case NotStarted():
                return self._not_started(event)
            case BeatReceived():
                self._beat_at, self._stuck_since = self._clock.now, None
                self._limit_s = self.limits.silent_s
            case Looked():
                self._look(event.state)
            case Ended():
                return self._ended(event)
            case StopRequested():
                return self._end_as_asked(event.by)
        return []

    # ---- the executor's life ------------------------------------------------------------------
    def _started(self, event: Started) -> list[Action]:
        self.process, self._is_starting = event.process, False
        self._beat_at, self._started_at = self._clock.now, self._clock.now - event.age_s
        self._sends_beats = event.sends_beats
        self._limit_s = max(self.limits.silent_s, self.limits.start_s - event.age_s)
        self._stuck_since, self._gone_since = None, None
        self._killed_for = self._not_started_for = ""
        how = "running executor adopted" if event.is_adopted else "executor started"
        return [Log(how, {"pid": event.process.pid})]

    def _not_started(self, event: NotStarted) -> list[Action]:
        self._is_starting = False
        self._backoff.fail(self._clock.now)
        actions: list[Action] = []
        if event.reason != self._not_started_for:
            self._not_started_for = event.reason
            actions.append(
                Log("no executor can be started", {"reason": event.reason}, level="error")
            )
        if not event.is_gone:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = self._clock.now
        elif self._clock.now - self._gone_since > self.limits.gone_s:
            actions += [Log("the cluster's folder was removed", level="error"), self._leave(1)]
        return actions

    def _look(self, state: str) -> None:
        if state == _TRACED:  # a debugger holds it, which may take a while
            self._beat_at = self._clock.now
        if state not in _STUCK:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = self._clock.now
        self._state = state

    def _ended(self, event: Ended) -> list[Action]:
        if self.process is None:
            return []
        pid, lived_s = self.process.pid, self._clock.now - self._started_at
        self.process = None
        self.ended_for = self._killed_for or _how(event.code)
        fields: dict[str, object] = {"pid": pid, "reason": self.ended_for}
        if self._is_asked:
            is_good = event.code in (0, -signal.SIGTERM)
            return [Log("the executor has ended", fields), self._leave(int(not is_good))]
        if event.code == 0 and not self._killed_for:
            return [Log("the executor has ended as asked", {"pid": pid}), self._leave(0)]
        if lived_s >= self.limits.healthy_s:
            self._may_be_quick = True
            self._backoff.succeed()
        if self._may_be_quick:
            self._may_be_quick = False
        else:
            self._backoff.fail(self._clock.now)
        fields["lived_s"] = round(lived_s, 1)
        fields["pause_s"] = round(max(0.0, self._backoff.until_s - self._clock.now), 2)
        fields["last_line"] = event.last_line
        return [Log("the executor has ended; starting it again", fields, level="warning")]

    def _end_as_asked(self, by: str) -> list[Action]:
        actions: list[Action] = [Log("asked to end", {"by": by})]
        if self.process is None:
            return [*actions, self._leave(0)]
        if not self._is_asked:
            self._is_asked, self._asked_at = True, self._clock.now
        return [*actions, ForwardSigterm()]  # a second request cuts the executor's open work short

    def _leave(self, code: int) -> Exit:
        self._is_leaving = True
        return Exit(code)

    # ---- what is due --------------------------------------------------------------------------
    def _due(self) -> list[Action]:
        if self.process is None:
            if self._is_starting or not self._backoff.is_over(self._clock.now):
                return []
            self._is_starting = True
            return [Start()]
        reason = "" if self._killed_for else self._why_kill()
        if not reason:
            return []
        self._killed_for = reason
        fields = {"pid": self.process.pid, "reason": reason}
        return [Log("ending the executor", fields, level="warning"), Kill()]

    def _why_kill(self) -> str:
        """Why the executor must be ended now; empty if it need not be."""
        limits, silent_s = self.limits, self._clock.now - self._beat_at
        if self._stuck_since is not None and self._clock.now - self._stuck_since >= limits.stuck_s:
            return _STUCK[self._state]
        if self._sends_beats and silent_s >= self._limit_s:
            return f"its event loop has been silent for {silent_s:.1f} s"
        if self._is_asked and self._clock.now - self._asked_at >= limits.end_s:
            return f"it did not end within {limits.end_s:g} s"
        return ""


def _how(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "it exited with an unknown code"
    if code < 0:
        try:
            return f"it was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was killed by signal {-code}"
    return f"exit code {code}"
