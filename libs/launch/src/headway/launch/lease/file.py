"""The driver's lease as files in the run's folder, which every node of the run sees."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Container
from dataclasses import asdict
from pathlib import Path

import msgspec
from headway.common.log import get_logger
from headway.launch.lease.base import Holder, LeaseView, ProcessLease, superseded

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
