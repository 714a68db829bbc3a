"""Which driver leads a run: a lease with an epoch, renewed by its holder, taken over when it stops.

A holder proves by a counter that it makes progress. An observer that sees no change of the
counter for longer than the limit, on its own monotonic clock, claims the next epoch; only one can
succeed. The claimant fences the previous holder, so that it cannot act any more, and only then
publishes itself and acts. Clocks are not compared between processes, and no lock is held that a
frozen process would keep.

A lease fences a holder on its own machine by pid, and one on another machine by the function it is
given, which asks the engine. Where that cannot confirm it, the epoch is the fence: executors,
journal and checkpoints folder refuse what an older driver wants. ``choose`` selects a run's lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from headway.common.decide import AwakeClock
from headway.common.errors import HeadwayError
from headway.common.node.machine import process_space
from headway.common.node.process import ProcessId
from headway.common.polling import wait_until

FENCE_LIMIT_S = 5.0


class SupersededError(HeadwayError):
    """Another process holds a newer epoch; this process must not act any more."""


@dataclass(frozen=True)
class Holder:
    """The leader; ``beat`` grows as it makes progress, ``endpoint`` is empty until it listens."""

    epoch: int
    node: int
    pid: int
    start_ticks: int
    endpoint: str = ""
    server_key: str = ""
    beat: int = 0
    space: str = ""
    """Where the pid means something, see ``process_space``."""
    join_endpoint: str = ""
    """Where nodes join the run; empty where one machine carries it."""
    has_resigned: bool = False
    """It can no longer reach most nodes and lets another node lead."""
    is_over: bool = False
    """The run has ended."""
    outcome: str = ""
    """How, as the journal has it: ``finished``, ``stopped`` or ``failed``; empty before."""

    @property
    def is_here(self) -> bool:
        """Whether it runs among the processes of this machine."""
        return self.space in ("", process_space())

    @property
    def process(self) -> ProcessId:
        """The process that holds the lease."""
        return ProcessId(self.pid, self.start_ticks)


@dataclass(frozen=True)
class LeaseView:
    """What an observer sees: the newest claimed epoch and the newest published holder."""

    claimed: int = 0
    holder: Holder | None = None
    is_to_stop: bool = False
    """A console wants the whole run to stop; only a lease that Kubernetes keeps can say so."""

    @property
    def is_over(self) -> bool:
        """Whether the holder says that the run has ended."""
        return self.holder is not None and self.holder.is_over

    @property
    def is_starting(self) -> bool:
        """Whether a claimant has not published itself: it is starting, or died before it could."""
        return self.claimed > (self.holder.epoch if self.holder is not None else 0)


class Lease(Protocol):
    """The lease of a run; one per run. Any method may raise OSError."""

    look_s: float
    """Shortest pause between two looks of one observer; many observe it."""
    calm_look_s: float
    """Shortest pause between two looks while the holder reports by itself."""

    def look(self) -> LeaseView:
        """The current state of the lease."""

    def has_ended(self, holder: Holder) -> bool:
        """Whether it is certain that the holder's process is gone; False when that is not known."""

    def claim(self, after: int) -> int | None:
        """Claim the epoch after ``after``, the observed ``claimed``.

        None if another process was faster.
        """

    def fence(self, holder: Holder) -> bool:
        """Make sure that an earlier holder cannot act any more.

        Returns False if that cannot be confirmed."""

    def publish(self, me: Holder) -> None:
        """Publish where the holder of the claimed epoch listens, and renew the lease.

        Raises:
            SupersededError: a newer epoch was claimed.
        """


class ProcessLease:
    """Base of the leases: the holder is a process, on this or another machine.

    Args:
        fence_elsewhere: makes sure that a holder on another machine cannot act any more; False if
            that cannot be confirmed.
    """

    def __init__(self, fence_elsewhere: Callable[[Holder], bool]) -> None:
        self._fence_elsewhere = fence_elsewhere

    def has_ended(self, holder: Holder) -> bool:
        """Whether the holder's process is gone from this machine."""
        return holder.is_here and holder.process.is_terminating()

    def fence(self, holder: Holder) -> bool:
        """Kill the holder, if it runs here.

        A frozen one counts as gone once the signal is pending."""
        if not holder.is_here:
            return self._fence_elsewhere(holder)
        process = holder.process
        if process == ProcessId.current():
            return True
        return wait_until(lambda: not process.kill() or process.is_terminating(), FENCE_LIMIT_S)


def superseded(epoch: int, newest: int) -> SupersededError:
    """What the holder of ``epoch`` gets once ``newest`` was claimed."""
    return SupersededError(
        f"epoch {epoch} is over: epoch {newest} was claimed",
        remedy="nothing to do: the newer driver leads the run",
    )


class LeaseWatch:
    """How long the holder has made no progress, as seen by one observer.

    Time counts only while the observer itself looks often enough: its own stall is not held against
    the holder.
    """

    def __init__(self, longest_gap_s: float = 1.0) -> None:
        self._longest_gap_s = longest_gap_s
        self._clock, self._moved_at = AwakeClock(), 0.0
        self._seen: LeaseView | None = None

    @property
    def stale_s(self) -> float:
        """Seconds without progress."""
        return self._clock.now - self._moved_at

    def see(self, view: LeaseView, now: float) -> float:
        """Take one observation; returns the seconds without progress."""
        self._clock.advance(now, self._longest_gap_s)
        if view != self._seen:
            self._seen, self._moved_at = view, self._clock.now
        return self.stale_s


def is_led(lease: Lease, wait_s: float = 1.0) -> bool:
    """Whether a driver holds the lease now: it runs here, or renews it elsewhere.

    Takes up to ``wait_s`` for one that runs elsewhere.
    """
    first = lease.look()
    if first.holder is None:
        return False
    if first.holder.is_here:
        return not first.holder.process.is_terminating()
    return wait_until(lambda: lease.look() != first, wait_s, every_s=max(0.05, lease.look_s))


class LeaseTerm:
    """The holder's side: its record, renewed by ``renew`` for as long as it makes progress."""

    def __init__(self, lease: Lease, me: Holder) -> None:
        self._lease, self.me = lease, me
        self._is_over = self._has_resigned = False
        self._outcome = ""
        self._writing = threading.Lock()
        """An older record must not overwrite a newer one: threads renew and resign at once."""

    def renew(self) -> None:
        """Show progress.

        Raises:
            SupersededError: another process leads. OSError: the record could not
                be written this time.
        """
        with self._writing:
            self.me = replace(
                self.me,
                beat=self.me.beat + 1,
                is_over=self._is_over,
                outcome=self._outcome,
                has_resigned=self._has_resigned,
            )
            self._lease.publish(self.me)

    def finish(self, outcome: str) -> None:
        """Have the next renewal say that the run is over, and how it ended."""
        self._is_over, self._outcome = True, outcome

    def resign(self) -> None:
        """Let another node lead. Raises the same errors as ``renew``."""
        self._has_resigned = True
        self.renew()
