"""One writer, up to 16 readers, whole slots handed over by counters in shared memory.

Every reader sees every slot, in order. The slowest reader limits the writer; nothing is dropped. No
call here blocks except ``RingReader.get``, which has a deadline.

The file's layout is in ``ring_file``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from headway.common.errors import CorruptError, DeadlineError, HeadwayError, InputError
from headway.common.node import ring_file as at
from headway.common.node.failpoints import failpoint
from headway.common.node.process import ProcessId
from headway.common.node.ring_file import (
    MAX_READERS,
    MAX_SPEC_BYTES,
    RingFile,
    locked,
    reader_line,
    stride,
)
from headway.common.node.segment import PAGE_BYTES, Segment, round_up

_SPINS = 20
_FIRST_PAUSE_S = 20e-6  # 39 us median hand-over (measured in a prototype with 4 readers)
_LONGEST_PAUSE_S = 1e-3


class RingAbortedError(DeadlineError):
    """The caller's ``abort`` ended the wait; no slot was taken."""


class RingHeldError(InputError):
    """Another living process already reads under this number."""


class RingWriter(RingFile):
    """The writing end of a ring, held by one process.

    It is made by ``create``, or by ``adopt`` after a predecessor's death.
    """

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self._reserved = False

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        spec: bytes,
        slot_bytes: int,
        num_slots: int,
        num_readers: int,
        slot_format: int = 0,
    ) -> RingWriter:
        """Make the ring's file.

        ``spec`` describes the content of the slots, ``slot_format`` its encoding; the ring uses
        neither.

        Raises:
            InputError: shared memory is full, or a size is out of range.
            FileExistsError: the ring already exists (``adopt`` it, or unlink it).
        """
        if not 1 <= num_readers <= MAX_READERS:
            raise InputError(
                f"num_readers {num_readers} is not in 1..{MAX_READERS}", remedy="share a reader"
            )
        if slot_bytes < 1 or num_slots < 1 or len(spec) > MAX_SPEC_BYTES:
            raise InputError(
                f"slot_bytes {slot_bytes}, num_slots {num_slots} or spec size {len(spec)} is out "
                "of range",
                remedy=f"use at least 1 slot of 1 byte, and a spec of at most {MAX_SPEC_BYTES} "
                "bytes",
            )

        def fill(segment: Segment) -> None:
            words, me = segment.words, ProcessId.current()
            words[at.SLOT_BYTES], words[at.NUM_SLOTS] = slot_bytes, num_slots
            words[at.NUM_READERS], words[at.SPEC_BYTES] = num_readers, len(spec)
            words[at.SLOT_FORMAT] = slot_format
            words[at.PID], words[at.START] = me.pid, me.start_ticks
            segment.buffer[PAGE_BYTES : PAGE_BYTES + len(spec)] = spec

        nbytes = PAGE_BYTES + round_up(len(spec), PAGE_BYTES) + num_slots * stride(slot_bytes)
        return cls(Segment.create(path, nbytes, at.MAGIC, at.VERSION, fill))

    @classmethod
    def adopt(cls, path: Path) -> RingWriter:
        """Continue at ``head``, where a dead writer stopped; a slot it had begun is written again.

        Raises:
            HeadwayError: the recorded writer is alive and not terminating
                (``ProcessId.is_terminating``).
            CorruptError: no ring. FileNotFoundError: no file.
        """
        with locked(path):  # of two adopters at once, the second finds the first alive
            ring = cls(Segment.open(path, at.MAGIC, at.VERSION, writable=True))
            if not ring.writer.is_terminating():
                pid = ring.writer.pid
                ring._segment.close()
                raise HeadwayError(
                    f"ring {path} is being written by process {pid}",
                    remedy="end that process first",
                )
            ring._take_place(at.PID)
        return ring

    def reserve(self) -> memoryview | None:
        """The writable payload of the next slot (``slot_bytes``), or None while the ring is full.

        Calling it again before ``publish`` gives the same slot.
        """
        words, head = self._words, self._words[at.HEAD]
        if head - self.slowest_tail() >= self.num_slots:
            return None
        # ``ended`` still has the number of the slot that was here before
        words[self._slot(head) + at.BEGUN] = head + 1
        self._reserved = True
        return self._payload(head)

    def publish(self, digest: int = 0) -> int:
        """Publish the reserved slot to the readers; return its number.

        The slot is published with its ``digest`` (u64).
        """
        if not self._reserved:
            raise RuntimeError("publish without a reserved slot")
        words, head = self._words, self._words[at.HEAD]
        slot = self._slot(head)
        words[slot + at.DIGEST] = digest
        words[slot + at.ENDED] = head + 1
        failpoint("ring.publish", seq=head)
        words[at.HEAD] = head + 1
        self._reserved = False
        return head

    def slowest_tail(self) -> int:
        """Slots that every reader has released."""
        return min(self._words[reader_line(k) + at.TAIL] for k in range(self.num_readers))

    def unlink_if_left(self) -> bool:
        """Remove the file if every reader has left; no reader can come back in between."""
        if not self.all_left():
            return False
        try:
            with locked(self.path):
                if not self.all_left():
                    return False
                self.unlink()
        except FileNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Unmap, and release the writer's place.

        Another process may adopt the ring at once.
        """
        if not self._segment.closed and self.writer == ProcessId.current():
            self._words[at.PID] = 0
        super().close()


class RingReader(RingFile):
    """Reader number ``reader``; one process at a time has a number, from opening to ``close``.

    A reader that opens again starts at its first slot that is not yet released, so slots that its
    predecessor had taken but not released are delivered again.
    """

    def __init__(self, path: Path, reader: int) -> None:
        """Take the reader's place.

        Raises:
            InputError: the ring has no such reader. RingHeldError: a process that is not
            terminating (``ProcessId.is_terminating``) holds the place. FileNotFoundError,
            CorruptError: there is no ring.
        """
        self._holds_place = False
        self.reader = reader
        self._line = reader_line(reader)
        self._tail = self._line + at.TAIL
        with locked(path):
            super().__init__(Segment.open(path, at.MAGIC, at.VERSION, writable=True))
            self._claim()
        self._next = self._words[self._tail]

    def _claim(self) -> None:
        reader = self.reader
        if not 0 <= reader < self.num_readers:
            num_readers = self.num_readers
            self.close()
            raise InputError(
                f"ring {self.path} has no reader {reader}", remedy=f"use 0..{num_readers - 1}"
            )
        holder = self.holder
        if not holder.is_terminating():
            me = holder == ProcessId.current()
            self.close()
            raise RingHeldError(
                f"reader {self.reader} of ring {self.path} is process {holder.pid}"
                + (", this one" if me else ""),
                remedy="close the reader that is open there, or open with another reader number",
            )
        self._take_place(self._line + at.READER_PID)
        self._words[self._line + at.LEFT] = 0
        self._holds_place = True

    @property
    def holder(self) -> ProcessId:
        """The process that reads under this number, or read last; pid 0 after a close."""
        return self.reader_process(self.reader)

    def leave(self) -> bool:
        """Release the place; returns whether this was the last of all readers.

        A ring whose file is gone has no last reader.
        """
        if not self._holds_place or self.holder.pid != os.getpid():
            return False  # a forked child holds nothing
        self._holds_place = False
        try:
            with locked(self.path):
                self._words[self._line + at.LEFT] = 1
                self._words[self._line + at.READER_PID] = 0
                return self.all_left()
        except OSError:
            self._words[self._line + at.READER_PID] = 0
            return False

    def close(self) -> None:
        """Give up the place and unmap. Payload views handed out stay valid. May be repeated."""
        self.leave()
        super().close()

    def __del__(self) -> None:
        # Its owner forgot to close it: the place must not stay taken while this process lives.
        with contextlib.suppress(AttributeError):
            self.close()

    @property
    def tail(self) -> int:
        """Slots released by this reader."""
        return self._words[self._tail]

    def poll(self) -> tuple[int, memoryview] | None:
        """Return the next slot as (sequence number, read-only payload), or None.

        None means that nothing is published yet.

        The payload may be read until ``release``; several slots may be taken before
        the first is released.

        Raises:
            CorruptError: the slot is not whole.
        """
        seq = self._next
        if self._words[at.HEAD] <= seq:
            return None
        self._check(seq)
        self._next = seq + 1
        return seq, self._payload(seq).toreadonly()

    def get(
        self, timeout_s: float, abort: Callable[[], bool] | None = None
    ) -> tuple[int, memoryview]:
        """Wait for the next slot, and return it as ``poll`` does.

        A writer's death does not end the wait: a successor may adopt the ring.

        Raises:
            RingAbortedError: ``abort`` returned true. DeadlineError: ``timeout_s`` passed.
        """
        deadline = time.monotonic() + timeout_s
        pause_s, spins = _FIRST_PAUSE_S, _SPINS
        while (taken := self.poll()) is None:
            if abort is not None and abort():
                raise RingAbortedError(f"wait for slot {self._next} of {self.path.name} aborted")
            if time.monotonic() >= deadline:
                state = "alive" if self.writer_alive() else "dead"
                raise DeadlineError(
                    f"no slot {self._next} in ring {self.path} after {timeout_s:g} s (its writer "
                    f"is {state})",
                    remedy="look at the writer's log",
                )
            if spins:
                spins -= 1
                time.sleep(0)
            else:
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        return taken

    def digest(self, seq: int) -> int:
        """The digest published with slot ``seq``, which is taken and not yet released."""
        self._check_held(seq)
        return self._words[self._slot(seq) + at.DIGEST]

    def release(self, seq: int) -> None:
        """Give slot ``seq``, and all before it, back to the writer.

        Raises:
            ValueError: ``seq`` was not taken, or is released already.
            CorruptError: the slot changed while it was held.
        """
        self._check_held(seq)
        self._check(seq)
        self._words[self._tail] = seq + 1

    def writer_alive(self) -> bool:
        return self.writer.alive()

    def _check_held(self, seq: int) -> None:
        if not self._words[self._tail] <= seq < self._next:
            raise ValueError(
                f"slot {seq} is not held: {self._words[self._tail]}..{self._next - 1} are"
            )

    def _check(self, seq: int) -> None:
        slot = self._slot(seq)
        begun, ended = self._words[slot + at.BEGUN], self._words[slot + at.ENDED]
        if begun != seq + 1 or ended != seq + 1:
            raise CorruptError(
                f"slot {seq} of ring {self.path} is marked {begun - 1}, {ended - 1}",
                remedy="open a new ring; two processes may be writing this one",
            )
