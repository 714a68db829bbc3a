"""Slots from the node's daemon: the client asks it to open a ring, then only reads the ring."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from headway.common.errors import CorruptError, DeadlineError, HeadwayError, InputError, RemoteError
from headway.common.node.ring import RingAbortedError, RingReader
from headway.common.wire.client import CallAbortedError, Client
from headway.common.wire.message import Message
from headway.common.wire.messages.dataloader import (
    CloseStream,
    DataStatus,
    GetDataStatus,
    OpenStream,
    StreamClosed,
    StreamOpened,
)
from headway.dataloader.config import StreamSpec
from headway.dataloader.jobs import process_name
from headway.dataloader.stream import SLOT_FORMAT, slot_bytes, slot_sample
from headway.dataloader.trouble import Trouble, local_error, printable, read_trouble

_ASK_AGAIN_S = 2.0  # under one id: a live daemon executes the request once
_PAUSE_S = 0.1
_RETRY_S = 1.0
_SILENT_S = 3.0  # then a wait for the daemon is reported
_GOODBYE_S = 0.2
_STATUS_S = 0.5
_LOOK_S = 0.05  # between two checks for errors while waiting

Abort = Callable[[], bool]
T = TypeVar("T", bound=Message)


class RingSource:
    """Slots of the daemon's ring, in order, under one reader number."""

    def __init__(
        self, endpoint: str, spec: StreamSpec, reader: int, timeout_s: float, abort: Abort | None
    ) -> None:
        """Request the ring from the daemon and take the reader's place in it.

        Raises:
            RingAbortedError: ``abort``, checked every 0.1 s, returned true.
                DeadlineError: no daemon within ``timeout_s``. RingHeldError: a living
                process reads under this number. InputError, CorruptError: errors of
                ``spec`` or the data that the daemon reports.
        """
        _check(spec, reader)
        self._endpoint, self._spec, self._timeout_s = endpoint, spec, timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._abort = abort
        self._reader = self._open(reader)
        if spec.num_readers == 1 and self._reader.tail:
            # Left by a predecessor that was killed: it has no other reader, so start over.
            self._call(self._close_message(if_left=False), StreamClosed)
            self._reader.close()
            self._reader = self._open(reader)
        self.first_slot = self._reader.tail
        self._held: int | None = None
        self._look_at_s = 0.0
        self._transient: Trouble | None = None

    def take(self, slot: int, abort: Abort | None) -> memoryview:
        """The payload of slot ``slot`` until ``give_back``; raises like ``DataClient.next``."""
        self._transient, self._look_at_s = None, time.monotonic() + _LOOK_S
        try:
            seq, payload = self._reader.get(self._timeout_s, lambda: self._look(abort))
        except RingAbortedError:
            raise
        except DeadlineError as error:
            raise self._with_trouble(error) from error
        self._held = seq
        expected = slot_sample(self._spec, slot)
        if seq != slot or self._reader.digest(seq) != expected:
            raise CorruptError(
                f"slot {seq} of {self._reader.path} holds sample {self._reader.digest(seq)}, "
                f"not {expected}",
                remedy="open the stream with a new generation",
            )
        return payload

    def give_back(self) -> None:
        """Release the slot that was taken last."""
        if self._held is not None:
            self._reader.release(self._held)
            self._held = None

    def close(self) -> None:
        """Leave the ring; the last reader has it removed. Never waits for the daemon."""
        was_last = self._reader.leave()
        self._reader.close()
        if was_last:
            client = Client(self._endpoint)
            with contextlib.suppress(HeadwayError):
                client.notify(self._close_message(if_left=True))
            client.close(linger_s=_GOODBYE_S)

    def _look(self, abort: Abort | None) -> bool:
        """Whether to give up; raises errors that waiting does not resolve."""
        if abort is not None and abort():
            return True
        if time.monotonic() >= self._look_at_s:
            self._look_at_s = time.monotonic() + _LOOK_S
            self._transient = trouble = read_trouble(self._reader.path)
            if trouble is not None and not trouble.is_transient:
                raise trouble.error()
        return False

    def _with_trouble(self, error: DeadlineError) -> DeadlineError:
        trouble = self._transient
        if trouble is None:
            return error
        lasted_s = time.monotonic() - trouble.since_s
        return DeadlineError(
            f"no batch within {self._timeout_s:g} s: {trouble.message}, for {lasted_s:.0f} s now",
            remedy=trouble.remedy,
        )

    def _open(self, reader: int) -> RingReader:
        while True:
            asked = OpenStream(spec=self._spec, process=process_name(self._spec))
            opened = self._call(asked, StreamOpened)
            self.fingerprint, self._job = opened.fingerprint, opened.job
            try:
                ring = RingReader(Path(opened.path), reader)
            except FileNotFoundError as error:
                # Removed since the reply, by its last reader or a newer generation: ask again.
                if time.monotonic() >= self._deadline_s:
                    raise DeadlineError(
                        f"ring {opened.path} is gone again", remedy="join the newest generation"
                    ) from error
                self._pause(_PAUSE_S)
                continue
            if (ring.slot_format, ring.slot_bytes) != (SLOT_FORMAT, slot_bytes(self._spec)):
                ring.close()
                raise CorruptError(
                    f"ring {opened.path} has slots of another format or size",
                    remedy="run every process of the run from one installation",
                )
            return ring

    def _close_message(self, *, if_left: bool) -> CloseStream:
        spec = self._spec
        return CloseStream(
            generation=spec.generation,
            dp_rank=spec.dp_rank,
            split=spec.split,
            if_left=if_left,
            job=self._job,
        )

    def _call(self, message: Message, reply: type[T]) -> T:
        """Ask until the deadline, also while the daemon is absent or its reads fail."""
        report_at_s = time.monotonic() + _SILENT_S

        def look() -> bool:
            nonlocal report_at_s
            if time.monotonic() > report_at_s:
                report_at_s = float("inf")
                self._report_wait()
            return self._abort is not None and self._abort()

        while True:
            left_s = max(0.01, self._deadline_s - time.monotonic())
            try:
                with Client(self._endpoint) as client:
                    retries = int(left_s // _ASK_AGAIN_S)
                    return client.call(message, reply, left_s, retries, look)
            except RemoteError as error:
                known = local_error(error.remote_code, error.message, error.remedy)
                if known is not None:
                    raise known from error
                if error.remote_code != "read" or left_s <= _RETRY_S:
                    raise
                self._pause(_RETRY_S)
            except CallAbortedError as error:
                raise self._aborted() from error
            except DeadlineError as error:
                if (waited_s := self._opening_s()) is not None:
                    raise DeadlineError(
                        f"the dataloader has been opening the index of {self._spec.path} for "
                        f"{waited_s:.0f} s and is not ready after {self._timeout_s:g} s",
                        remedy="raise timeout_s (data.wait_timeout_s), or check the disk",
                    ) from error
                raise DeadlineError(
                    f"no dataloader answers at {self._endpoint} in {self._timeout_s:g} s",
                    remedy="start it, or check its log",
                ) from error

    def _report_wait(self) -> None:
        """It may be starting; it may also be the wrong address."""
        from headway.common.log import get_logger

        if (waited_s := self._opening_s()) is not None:
            get_logger("dataloader").info(
                f"opening the index ({waited_s:.0f} s)", path=self._spec.path
            )
            return
        address = self._endpoint.removeprefix("ipc://")
        is_file = address == self._endpoint or Path(address).exists()
        get_logger("dataloader").warning(
            "no dataloader answers yet"
            if is_file
            else "there is no dataloader at that address yet",
            endpoint=self._endpoint,
            waits_s=round(self._deadline_s - time.monotonic()),
            remedy="start it, or check its log",
        )

    def _opening_s(self) -> float | None:
        """For how long the daemon has been opening the data; None if it is not, or is silent."""
        try:
            with Client(self._endpoint) as client:
                status = client.call(GetDataStatus(), DataStatus, _STATUS_S, 0, self._abort)
        except HeadwayError:
            return None
        return status.opening.get(self._spec.path)

    def _pause(self, duration_s: float) -> None:
        until_s = time.monotonic() + duration_s
        while (left_s := until_s - time.monotonic()) > 0:
            if self._abort is not None and self._abort():
                raise self._aborted()
            time.sleep(min(_PAUSE_S, left_s))

    def _aborted(self) -> RingAbortedError:
        return RingAbortedError(f"opening {self._spec.path} at {self._endpoint} aborted")


def _check(spec: StreamSpec, reader: int) -> None:
    if not 0 <= reader < spec.num_readers:
        raise InputError(
            f"reader {reader} of {spec.num_readers}", remedy="use 0 <= reader < num_readers"
        )
    if printable(spec.path) != spec.path:
        raise InputError(
            f"the path {printable(spec.path)} is not UTF-8 and cannot be sent in a message",
            remedy="rename it, or read in this process: DataClient(None, ...)",
        )
