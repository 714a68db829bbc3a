"""Whether this node should start a driver, and whether the one it has should go.

An executor leads by claiming the next epoch of the lease; only the one that wins starts a driver.
It does so when the lease has not been renewed for too long and no driver reports, at once when its
own driver has ended, and at once on the first node of a fresh run.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from headway.common.backoff import Backoff
from headway.controller.executor.node_events import ClaimLease
from headway.launch.lease.base import LeaseView, LeaseWatch

START_GRACE_S = 20.0
"""How long a driver that is being started may take to publish itself: machines may be busy."""
JITTER_S = 1.0
"""Nodes wait for up to so much longer, each for another time,
so that they do not claim all at once."""
HUNG_LIMIT_S = 10.0
"""A driver that reports but does not renew its lease is replaced after so much more."""
CLAIM_PAUSE_S = (0.25, 5.0)  # first and longest pause after a claim that failed
LONGEST_GAP_S = 1.5
"""So much between two looks at the lease counts: while it matters, they are up to 1.25 s apart."""
MAX_STARTS = 4
"""A node whose driver has failed so often in a row lets another node try."""
FRESH_LOOKS = 2
"""At the lease after the end of the node's own driver, before the node leads again: the first may
have begun before the driver resigned."""
HANDICAP_S = 10.0
"""How much longer such a node waits than others, and one whose driver has resigned."""


@dataclass
class LeaseDecision:
    """What ``LeaseCandidate.next`` wants: one of these at a time."""

    claim: ClaimLease | None = None
    leave: bool = False
    """Another node leads: end the node's own driver and monitor."""


class LeaseCandidate:
    """Times are those of the executor's own clock, see ``Guardian``."""

    def __init__(
        self,
        node: int,
        driver_silent_s: float,
        *,
        epoch: int = 0,
        is_fresh: bool = False,
        is_alone: bool = False,
    ) -> None:
        self._node, self._silent_s, self._is_alone = node, driver_silent_s, is_alone
        self._at_once = is_fresh and node == 0
        self._is_first = is_fresh
        """No driver of this run has been seen yet: the lease may be that of an earlier run."""
        self._handicap_s = 0.0
        self.epoch = epoch
        """The epoch that this node has claimed, 0 while it does not lead."""
        self.view: LeaseView | None = None
        self._claimed = 0
        """The newest epoch that was ever seen: it stays when the files of the lease are lost."""
        self._watch = LeaseWatch(LONGEST_GAP_S)
        self._stale_s = 0.0
        self._is_claiming = False
        self._looks = FRESH_LOOKS
        """At the lease since the node's own driver was last up."""
        self._has_ended = False
        self._backoff = Backoff(*CLAIM_PAUSE_S)
        self.why = ""
        """Why the last claim failed."""

    def see(self, view: LeaseView, now: float) -> None:
        """Take in one look at the lease."""
        if self.view is not None and view != self.view:
            self._is_first = False
        self.view = view
        self._claimed = max(self._claimed, view.claimed)
        self._looks += 1
        self._stale_s = self._watch.see(view, now)
        if not self._stale_s:
            self.why = ""  # somebody leads

    @property
    def is_stale(self) -> bool:
        """Whether the last two looks at the lease showed no progress."""
        return self._stale_s > 0

    @property
    def wants_reads(self) -> bool:
        """Whether the lease may have been given up since it was last seen."""
        is_old = self._has_ended and self._looks < FRESH_LOOKS
        return bool(self.epoch) and is_old and not self._is_alone

    def claimed(self, epoch: int | None) -> None:
        """The answer to a claim; None: another executor was faster."""
        self._is_claiming, self._at_once, self.why = False, False, ""
        self._backoff.succeed()
        self._stale_s = self._handicap_s = 0.0
        self.epoch = epoch or 0

    def not_claimed(self, error: str, now: float) -> None:
        """A claim could not be made."""
        self._is_claiming, self.why = False, error
        self._backoff.fail(now)

    def next(
        self, now: float, *, own: str, failures: int, silent_s: float, is_readable: bool
    ) -> LeaseDecision:
        """What is to be done now.

        Args:
            now: the executor's own clock.
            own: how the node's own driver is: ``up``, ``down`` (it has ended and may be started
                again), ``waiting`` (it has ended, its pause is not over) or empty.
            failures: how often in a row it has ended soon after its start.
            silent_s: how long no driver has reported.
            is_readable: the last look at the run's folder found it there, and the lease.
        """
        self._has_ended = own == "down"
        if own == "up":
            self._looks = 0
        view = self.view
        if view is None or not is_readable or self._is_claiming:
            return LeaseDecision()
        if self.epoch and self._is_over(view, own, failures):
            self.epoch = 0
            return LeaseDecision(leave=True)
        if not self._backoff.is_over(now) or own == "waiting":
            return LeaseDecision()
        if self._at_once:
            return self._claim()
        if self.epoch and own == "down":
            return LeaseDecision() if self.wants_reads else self._claim()
        limit_s = self._limit_s(view)
        is_reporting = silent_s < self._silent_s and self._stale_s < limit_s + HUNG_LIMIT_S
        if self._stale_s <= limit_s or is_reporting:
            return LeaseDecision()
        # a driver of this node that is still up is ended once the claim is made, not before: where
        # nobody can claim, as in a folder that takes no writes, it is the only one there can be
        return self._claim()

    def _is_over(self, view: LeaseView, own: str, failures: int) -> bool:
        """Whether the epoch of this node has come to its end."""
        has_resigned = view.holder is not None and view.holder.has_resigned
        has_resigned = has_resigned and view.claimed == self.epoch
        if own != "up" and (has_resigned or failures >= MAX_STARTS) and not self._is_alone:
            self._handicap_s = HANDICAP_S
            return True
        if own != "up" and view.claimed > self.epoch:
            return True
        holder = view.holder
        return holder is not None and holder.epoch > self.epoch and holder.node != self._node

    def _claim(self) -> LeaseDecision:
        self._is_claiming = True
        return LeaseDecision(claim=ClaimLease(self._claimed))

    def _limit_s(self, view: LeaseView) -> float:
        """How long the lease may stay as it is before this node claims it."""
        mixed = zlib.crc32(f"{self._node}:{view.claimed}".encode())
        jitter_s = JITTER_S * mixed / 2**32
        is_starting = view.is_starting or view.holder is None or not view.holder.endpoint
        if not view.is_starting and view.holder is not None and view.holder.has_resigned:
            return jitter_s + self._handicap_s
        grace_s = START_GRACE_S if is_starting or self._is_first else 0.0
        return self._silent_s + jitter_s + grace_s + self._handicap_s

    def trouble(self) -> list[str]:
        """A sentence when the lease cannot be claimed; stable while nothing changes."""
        return [f"the driver's lease cannot be claimed: {self.why}"] if self.why else []
