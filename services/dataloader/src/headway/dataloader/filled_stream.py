"""One ring and its filler: filled by one thread, inspected and closed by another."""

from __future__ import annotations

import contextlib
import threading
import time

from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.node.ring import RingWriter
from headway.common.wire.messages.dataloader import StreamStatus
from headway.dataloader.config import StreamSpec
from headway.dataloader.pack import Packer
from headway.dataloader.shared import SharedPackers
from headway.dataloader.stream import Filler, num_slots, slot_sample
from headway.dataloader.trouble import Trouble, error_path, printable, read_trouble, write_trouble

_RETRY_S = 1.0
_STATUS_WAIT_S = 0.05

_log = get_logger("dataloader")


class Stream:
    """The stream of one dp rank and split."""

    def __init__(
        self, spec: StreamSpec, writer: RingWriter, shared: SharedPackers, packer: Packer | None
    ) -> None:
        self.spec = spec
        self.writer = writer
        self.is_closed = False
        self._is_unlinked = False
        self.asked_by = ""
        """The process that opened it, in this daemon's life."""
        self._shared = shared
        self._end = num_slots(spec)
        self._lock = threading.Lock()
        self.packer = packer
        """Kept while filling fails, so that its index is not rebuilt."""
        self.filler = None if packer is None else Filler(spec, packer)
        self.has_ended = self._end is not None and writer.head >= self._end
        self.trouble = read_trouble(writer.path)
        """An error of a predecessor remains until a slot is filled."""
        self.retry_at_s = 0.0
        self._seen = self._status()

    @property
    def owner(self) -> str:
        """The process that reads the stream, or has asked for it, as ``p<pid>-<start ticks>``.

        It is "" if that is unknown or several processes read.
        """
        if self.writer.num_readers > 1 or self.is_closed:
            return ""
        holder = self.writer.reader_process(0)
        return f"p{holder.pid}-{holder.start_ticks}" if holder.pid else self.asked_by

    def fill(self, max_slots: int) -> int:
        """Fill all free slots; returns how many. Never raises for bad data."""
        if self.is_closed or self.has_ended or time.monotonic() < self.retry_at_s:
            return 0
        filled = 0
        with self._lock:
            try:
                while filled < max_slots and not self.is_closed and self._fill_slot():
                    filled += 1
            except Exception as error:
                # reported to the readers and tried again, since the files may be repaired
                self._failed(error)
            if not self.is_closed:
                self._seen = self._status()
        self._unmap_if_closed()
        return filled

    def rest(self) -> None:
        """Pause filling for a second."""
        self.retry_at_s = time.monotonic() + _RETRY_S

    def close(self, *, unlink: bool) -> None:
        """Stop filling; with ``unlink`` the file is removed, and readers keep their mapping.

        Does not wait for a slot that is being filled; the filling thread then unmaps.
        """
        self._is_unlinked = unlink
        self.is_closed = True
        if unlink:
            self.writer.unlink()
            error_path(self.writer.path).unlink(missing_ok=True)
        self._unmap_if_closed()

    def status(self) -> StreamStatus | None:
        """Return the status, or None if the stream was closed meanwhile.

        While a slow slot is being filled, it is the last known status.
        """
        if self._lock.acquire(timeout=_STATUS_WAIT_S):
            try:
                if not self.is_closed:
                    self._seen = self._status()
            finally:
                self._lock.release()
        return None if self.is_closed else self._seen

    def _status(self) -> StreamStatus:
        head, trouble = self.writer.head, self.trouble
        return StreamStatus(
            ring=str(self.writer.path),
            spec=self.spec,
            filled=head,
            released=self.writer.slowest_tail(),
            next_sample=slot_sample(self.spec, head),
            error="" if trouble is None else str(trouble.error()),
            ended=self.has_ended,
        )

    def _unmap_if_closed(self) -> None:
        """Unmap the ring if the stream is closed and its lock is free.

        Whichever thread comes last does it: one sets the flag before it tries the lock, the other
        releases the lock before it reads the flag.
        """
        if self.is_closed and self._lock.acquire(blocking=False):
            if self._is_unlinked:  # again, since a failing slot may have written it meanwhile
                error_path(self.writer.path).unlink(missing_ok=True)
            self.writer.close()
            self._lock.release()

    def _fill_slot(self) -> bool:
        payload = None if self.has_ended else self.writer.reserve()
        if payload is None:
            return False
        if self.filler is None:
            self.packer = self._shared.packer(self.spec)
            self.filler = Filler(self.spec, self.packer)
        sample = self.filler.fill(payload, self.writer.head)
        head = self.writer.publish(digest=sample) + 1
        self.has_ended = self._end is not None and head >= self._end
        if self.trouble is not None:
            self._recovered()
        return True

    def _failed(self, error: Exception) -> None:
        if self.packer is not None:
            self.packer.tokens.retire()  # opened and checked anew
        self.filler = None
        self.rest()
        known = self.trouble
        if not isinstance(error, HeadwayError):
            error = HeadwayError(f"{type(error).__name__}: {error}")
        self.trouble = Trouble.of(error, known)
        if known is None or known.message != self.trouble.message:
            ring = self.writer.path.name
            _log.error("stream cannot be filled", ring=ring, reason=printable(str(error)))
        if not self.is_closed:
            with contextlib.suppress(OSError):  # shared memory may be full
                write_trouble(self.writer.path, self.trouble)

    def _recovered(self) -> None:
        self.trouble = None
        error_path(self.writer.path).unlink(missing_ok=True)
        _log.info("stream is filled again", ring=self.writer.path.name)
