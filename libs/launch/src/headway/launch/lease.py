"""Who leads a run: a lease with an epoch, which its holder renews and others may take when it stops.

A holder proves by a counter that it makes progress. Whoever sees the counter stand still for longer
than the limit, on its own monotonic clock, claims the next epoch; only one can. The claimant fences
the holder before it, so that it can do no more harm, and only then publishes itself and acts. No
clocks are compared between processes, and nothing is held by a lock that a frozen process would keep.

``FileLease`` serves processes of one machine: it fences by pid. Engines over machines bring their own.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from headway.common.errors import HeadwayError
from headway.common.node.process import ProcessId
from headway.common.polling import wait_until

FENCE_LIMIT_S = 5.0
_RECORD_BYTES = 1024
_READ_TRIES = 20


class SupersededError(HeadwayError):
    """Another process holds a newer epoch: whoever gets this must not act any more."""


@dataclass(frozen=True)
class Holder:
    """Who leads: ``beat`` grows while the holder makes progress; ``endpoint`` is empty until it listens."""

    epoch: int
    node: int
    pid: int
    start_ticks: int
    endpoint: str = ""
    server_key: str = ""
    beat: int = 0

    @property
    def process(self) -> ProcessId:
        """The process that holds the lease."""
        return ProcessId(self.pid, self.start_ticks)


@dataclass(frozen=True)
class LeaseView:
    """What an observer sees: the newest epoch claimed, and the newest holder that has published itself."""

    claimed: int = 0
    holder: Holder | None = None

    @property
    def is_starting(self) -> bool:
        """A claimant has not published itself yet: it is starting, or has died before it could."""
        return self.claimed > (self.holder.epoch if self.holder is not None else 0)


class Lease(Protocol):
    """One per run."""

    def look(self) -> LeaseView:
        """How the lease stands now."""

    def has_ended(self, holder: Holder) -> bool:
        """Whether it is certain that the holder's process is gone; False when that is not known."""

    def claim(self, after: int) -> int | None:
        """Claim the epoch after ``after``, the ``claimed`` that was seen; None when another was faster."""

    def fence(self, holder: Holder) -> bool:
        """Make sure that an earlier holder can do no more harm; False: it could not be confirmed."""

    def publish(self, me: Holder) -> None:
        """Tell where the holder of the claimed epoch listens, and renew it.

        Raises:
            SupersededError: a newer epoch was claimed.
        """


class FileLease:
    """The lease as ``driver.json`` and empty files ``driver.claim-N`` in the run's folder, both 0600.

    A claim is the exclusive creation of an empty file, and the record is overwritten in place, so
    that both work on a full disk once the record exists.
    """

    def __init__(self, folder: Path) -> None:
        self._record, self._folder = folder / "driver.json", folder

    def look(self) -> LeaseView:
        """How the lease stands now; no holder while its record cannot be read."""
        holder = self._holder()
        return LeaseView(max(self._claimed(), holder.epoch if holder is not None else 0), holder)

    def _holder(self) -> Holder | None:
        for attempt in range(_READ_TRIES):
            try:
                row = json.loads(self._record.read_bytes())
                if row.pop("end") == row["beat"]:  # else it was read while it was being written
                    return Holder(**row)
            except FileNotFoundError:
                return None
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                pass
            time.sleep(0.0005 * attempt)
        return None

    def _claimed(self) -> int:
        return max(self._claims(), default=0)

    def _claims(self) -> dict[int, Path]:
        """Epoch -> file; what has another name is somebody else's."""
        found = {}
        for path in self._folder.glob("driver.claim-*"):
            number = path.name.removeprefix("driver.claim-")
            if number.isascii() and number.isdecimal():
                found[int(number)] = path
        return found

    def has_ended(self, holder: Holder) -> bool:
        """Whether the holder's process is gone from this machine."""
        return holder.process.is_doomed()

    def claim(self, after: int) -> int | None:
        """Claim the epoch after ``after``; None when it is taken.

        Raises:
            OSError: the folder cannot be written.
        """
        if self._claimed() > after:
            return None
        path = self._folder / f"driver.claim-{after + 1}"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return None
        for epoch, old in self._claims().items():
            if epoch <= after:
                old.unlink(missing_ok=True)
        return after + 1

    def fence(self, holder: Holder) -> bool:
        """Kill the holder. One that is frozen counts as gone once the signal waits for it."""
        process = holder.process
        if process == ProcessId.current():
            return True
        return wait_until(lambda: not process.kill() or process.is_doomed(), FENCE_LIMIT_S)

    def publish(self, me: Holder) -> None:
        """Write the record in place.

        Raises:
            SupersededError: a newer epoch was claimed.
            OSError: the record cannot be written; the lease ends unless a later call succeeds.
        """
        newest = self._claimed()
        if newest > me.epoch:
            raise SupersededError(
                f"epoch {me.epoch} is over: epoch {newest} was claimed",
                remedy="nothing to do: the newer driver leads the run",
            )
        row = json.dumps({**asdict(me), "end": me.beat}).encode()
        descriptor = os.open(self._record, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, row.ljust(_RECORD_BYTES), 0)
        finally:
            os.close(descriptor)


class LeaseWatch:
    """How long the holder has made no progress, as one observer has seen it.

    Time counts only while the observer itself looks often enough: its own stall is not held against
    the holder.
    """

    def __init__(self, longest_gap_s: float = 1.0) -> None:
        self._longest_gap_s = longest_gap_s
        self._seen: LeaseView | None = None
        self._looked_at: float | None = None
        self.stale_s = 0.0

    def see(self, view: LeaseView, now: float) -> float:
        """Take one observation; returns the seconds without progress."""
        gap = 0.0 if self._looked_at is None else max(0.0, now - self._looked_at)
        self._looked_at = now
        if view != self._seen:
            self._seen, self.stale_s = view, 0.0
        else:
            self.stale_s += min(gap, self._longest_gap_s)
        return self.stale_s


class Tenure:
    """The holder's end: what it publishes, renewed by ``renew`` for as long as it makes progress."""

    def __init__(self, lease: Lease, me: Holder) -> None:
        self._lease, self.me = lease, me

    def renew(self) -> None:
        """Show progress.

        Raises:
            SupersededError: somebody else leads.
            OSError: the record could not be written this time.
        """
        self.me = replace(self.me, beat=self.me.beat + 1)
        self._lease.publish(self.me)
