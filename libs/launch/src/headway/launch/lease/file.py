"""Which driver leads a run: a lease with an epoch, renewed by its holder, taken over when it stops.

A holder proves by a counter that it makes progress. An observer that sees no change of the
counter for longer than the limit, on its own monotonic clock, claims the next epoch; only one can
succeed. The claimant fences the previous holder, so that it cannot act any more, and only then
publishes itself and acts. Clocks are not compared between processes, and no lock is held that a
frozen process would keep.

A lease fences a holder on its own machine by pid, and one on another machine by the function it is
given, which asks the engine. Where that cannot confirm it, the epoch is the fence: executors,
journal and checkpoints folder refuse what an older driver wants. ``leases`` chooses a run's lease.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Container
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec
from headway.common.decide import AwakeClock
from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.node.machine import process_space
from headway.common.node.process import ProcessId
from headway.common.polling import wait_until

FENCE_LIMIT_S = 5.0
CALM_LOOK_S = 1.0
_CLAIM, _STRAY = "driver.claim-", "driver.stray-"
PAIRED_EPOCH = 1000
"""From this epoch on a claim counts only beside the one before or after it, or if the record is of
it or of the one before; few runs have so many drivers, and a file that no driver has made is
alone."""
_MOST_EPOCH = 2**53
_MOST_PID = 2**31
_RECORD_BYTES = 1024
_READ_TRIES = 36
"""0.3 s: longer than a living holder takes to write a damaged record again."""

log = get_logger("lease")


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


class FileLease(ProcessLease):
    """The lease as files ``driver.json`` and ``driver.claim-N`` in the run's folder, both 0600.

    A claim is the exclusive creation of an empty file, and the record is overwritten in place, so
    that both work on a full disk once the record exists. What is behind the record in its file is
    ignored, and cut off by the next renewal. A record that is damaged counts as absent: the claims
    alone say which epoch is next.
    """

    look_s = 0.0
    calm_look_s = CALM_LOOK_S

    def __init__(
        self, folder: Path, fence_elsewhere: Callable[[Holder], bool] = lambda _: True
    ) -> None:
        super().__init__(fence_elsewhere)
        self._record, self._folder = folder / "driver.json", folder

    def look(self) -> LeaseView:
        """The current state of the lease; without a holder while its record is damaged.

        Raises:
            OSError: the folder or the record cannot be read.
        """
        holder = self._holder()
        return LeaseView(max(self._claimed(), holder.epoch if holder is not None else 0), holder)

    def _holder(self) -> Holder | None:
        error: OSError | None = None
        for attempt in range(_READ_TRIES):
            try:
                if (holder := _holder_of(self._record.read_bytes())) is not None:
                    return holder
            except FileNotFoundError:
                return None
            except OSError as last:
                error = last
            time.sleep(0.0005 * attempt)
        if error is not None:
            raise error
        return None

    def _claimed(self) -> int:
        return max(self._claims(), default=0)

    def _claims(self) -> dict[int, Path]:
        """Epoch -> file, without strays; an absent folder has none. Raises as ``_strays``."""
        found = self._numbers()
        strays = self._strays(found)
        return {epoch: path for epoch, path in found.items() if epoch not in strays}

    def _strays(self, found: dict[int, Path]) -> set[int]:
        """Those of the numbers that no driver has claimed; see ``PAIRED_EPOCH``.

        Raises:
            OSError: the folder or the record cannot be read.
        """
        strays = {number for number in found if _is_stray(number, found)}
        if strays and (holder := self._holder()) is not None:
            # a driver of an older version made one file: the record is its own, or the one before
            strays -= {e for e in (holder.epoch, holder.epoch + 1) if e <= _MOST_EPOCH}
        return strays

    def _numbers(self) -> dict[int, Path]:
        """Number -> file; files with other names are ignored, and an absent folder has none.

        Raises:
            OSError: the folder cannot be listed. ``Path.glob`` would find nothing in it.
        """
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return {}
        found = {}
        for name in names:
            number = name.removeprefix(_CLAIM)
            if name.startswith(_CLAIM) and number.isascii() and number.isdecimal():
                found[int(number)] = self._folder / name
        return found

    def claim(self, after: int) -> int | None:
        """Claim the epoch after ``after``; None if it is taken.

        Raises:
            OSError: the folder cannot be read or written; then nothing was claimed.
        """
        self._set_strays_aside()
        before = self._claims()
        if max(before, default=0) > after:
            return None
        is_paired = after + 1 >= PAIRED_EPOCH
        if is_paired:
            (self._folder / f"{_CLAIM}{after}").touch(mode=0o600)
        path = self._folder / f"{_CLAIM}{after + 1}"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return None
        for epoch, old in before.items():
            if not (is_paired and epoch == after):
                with contextlib.suppress(OSError):  # the claim is made all the same
                    old.unlink()
        return after + 1

    def _set_strays_aside(self) -> None:
        """Rename claims that no driver has made, so that a person can see them."""
        found = self._numbers()
        for number in self._strays(found):
            path = found[number]
            kept = path.with_name(path.name.replace(_CLAIM, _STRAY))
            log.warning("a claim that no driver has made is set aside", file=str(kept))
            with contextlib.suppress(OSError):  # it is ignored where it is
                path.rename(kept)

    def publish(self, me: Holder) -> None:
        """Write the record in place.

        Raises:
            SupersededError: a newer epoch was claimed.
            OSError: the record cannot be written; the lease ends unless a later call succeeds.
        """
        newest = self._claimed()
        if newest > me.epoch:
            if newest > me.epoch + 1:
                path = self._folder / f"{_CLAIM}{newest}"
                log.warning("the claim that ends this epoch skips others", file=str(path))
            raise superseded(me.epoch, newest)
        row = json.dumps({**asdict(me), "end": me.beat}).encode()
        descriptor = os.open(self._record, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            written = os.pwrite(descriptor, row.ljust(_RECORD_BYTES), 0)
            if os.fstat(descriptor).st_size > written:
                os.ftruncate(descriptor, written)
        finally:
            os.close(descriptor)


def _is_stray(epoch: int, found: Container[int]) -> bool:
    """Whether this claim is one that no driver makes."""
    is_alone = epoch - 1 not in found and epoch + 1 not in found
    return epoch > _MOST_EPOCH or (epoch >= PAIRED_EPOCH and is_alone)


def _holder_of(record: bytes) -> Holder | None:
    """What a record says; None while it is being written, and for one that is damaged."""
    try:
        row, _ = json.JSONDecoder().raw_decode(record.decode("utf-8", "replace"))
        holder = msgspec.convert(row, Holder)
        is_whole = row["end"] == holder.beat
    except (ValueError, RecursionError, KeyError, TypeError, msgspec.MsgspecError):
        return None
    is_sane = 0 < holder.epoch <= _MOST_EPOCH and 0 <= holder.pid < _MOST_PID
    return holder if is_whole and is_sane else None


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
                has_resigned=self._has_resigned,
            )
            self._lease.publish(self.me)

    def finish(self) -> None:
        """Have the next renewal say that the run is over."""
        self._is_over = True

    def resign(self) -> None:
        """Let another node lead. Raises the same errors as ``renew``."""
        self._has_resigned = True
        self.renew()
