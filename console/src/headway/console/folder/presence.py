"""Whether a driver on another machine still leads a run, as one observer sees its lease."""

from __future__ import annotations

import time
from typing import Literal

from headway.launch.lease.base import Lease, LeaseWatch, is_led

ENDED_S = 2.0
"""A run on other machines that has an outcome counts as over when its lease is not renewed."""
TAKEOVER_S = 60.0
"""A run without an outcome counts as over after this long: another driver may take it over."""

Presence = Literal["led", "silent", "gone"]
"""``silent``: nobody renews the lease now, and too little time has passed to call the run dead."""


class Observer:
    """Watches the lease of one run.

    What it saw before counts: a run whose driver's machine has died is taken over within seconds,
    and only who has watched its lease for ``TAKEOVER_S`` knows that nobody will.
    """

    def __init__(self) -> None:
        self._watch: LeaseWatch | None = None
        self._is_led = False

    def look(self, lease: Lease, *, has_outcome: bool) -> Presence:
        """Look once; the first call takes up to a second where the lease is not renewed."""
        is_first = self._watch is None
        if self._watch is None:
            self._watch, self._is_led = LeaseWatch(), is_led(lease)
        view = lease.look()
        stale_s = self._watch.see(view, time.monotonic())
        if not is_first and (stale_s == 0.0 or stale_s >= ENDED_S):
            self._is_led = stale_s == 0.0
        if view.holder is None:
            return "gone"
        if self._is_led:
            return "led"
        is_over = has_outcome or view.holder.is_over
        return "gone" if is_over or stale_s >= TAKEOVER_S else "silent"
