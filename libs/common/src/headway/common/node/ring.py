"""One writer, up to 16 readers, whole slots handed over by counters in shared memory.

Every reader sees every slot, in order. The slowest reader holds the writer back; nothing is dropped. No
call here blocks except ``RingReader.get``, which has a deadline.

File: header page; spec bytes; slots. Who writes which word:

    writer    its pid and start ticks, ``head`` (slots published), each slot's ``begun``, ``ended``,
    ``digest`` reader k  ``tails[k]`` (slots released)

Slot ``n`` of the stream lies in place ``n % num_slots``. Its ``begun`` is set to n + 1 before the payload and
``ended`` to n + 1 after it, so a slot that is not whole (or was overrun) shows as such.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from headway.common.errors import CorruptError, DeadlineError, HeadwayError, InputError
from headway.common.node.failpoints import failpoint
from headway.common.node.process import ProcessId
from headway.common.node.segment import LINE_BYTES, PAGE_BYTES, WORD_BYTES, Segment, round_up

_MAGIC = b"HWRING\0\0"
_VERSION = 1
MAX_READERS = 16
MAX_SPEC_BYTES = 1 << 20

_LINE = LINE_BYTES // WORD_BYTES
_SLOT_BYTES, _NUM_SLOTS, _NUM_READERS, _SPEC_BYTES = range(_LINE, _LINE + 4)
_PID, _START = range(2 * _LINE, 2 * _LINE + 2)
_HEAD = 3 * _LINE
_TAILS = 4 * _LINE  # one line per reader
_BEGUN, _ENDED, _DIGEST = range(3)

_SPINS = 20
_FIRST_PAUSE_S = 20e-6  # 39 us median hand-over (measured in a prototype with 4 readers)
_LONGEST_PAUSE_S = 1e-3


class RingAbortedError(DeadlineError):
    """The caller's ``abort`` ended the wait; no slot was taken."""


class _Ring:
    """What writer and reader share: the geometry."""

    def __init__(self, segment: Segment) -> None:
        words = segment.words
        self._segment = segment
        self._words = words
        self.path = segment.path
        self.slot_bytes = words[_SLOT_BYTES]
        self.num_slots = words[_NUM_SLOTS]
        self.num_readers = words[_NUM_READERS]
        spec_bytes = words[_SPEC_BYTES]
        self.spec = bytes(segment.buffer[PAGE_BYTES : PAGE_BYTES + spec_bytes])
        self._first_slot = PAGE_BYTES + round_up(spec_bytes, PAGE_BYTES)
        self._stride = _stride(self.slot_bytes)
        if self._first_slot + self.num_slots * self._stride > segment.nbytes:
            segment.close()
            raise CorruptError(f"{self.path} is too short for its slots", remedy="remove the file")

    def _slot(self, seq: int) -> int:
        """Index of the slot header's first word."""
        return (self._first_slot + seq % self.num_slots * self._stride) // WORD_BYTES

    def _payload(self, seq: int) -> memoryview:
        start = self._slot(seq) * WORD_BYTES + LINE_BYTES
        return self._segment.buffer[start : start + self.slot_bytes]

    @property
    def head(self) -> int:
        """Number of slots published so far."""
        return self._words[_HEAD]

    @property
    def writer(self) -> ProcessId:
        """The process that writes, or wrote last; pid 0 after a clean close."""
        return ProcessId(self._words[_PID], self._words[_START])

    def close(self) -> None:
        """Unmap. Payload views handed out stay valid."""
        self._words = memoryview(b"").cast("B")
        self._segment.close()

    def unlink(self) -> None:
        """Remove the file; the other side keeps its mapping."""
        self._segment.unlink()


def _stride(slot_bytes: int) -> int:
    return LINE_BYTES + round_up(slot_bytes, LINE_BYTES)


class RingWriter(_Ring):
    """The only process that publishes. Made by ``create``, or by ``adopt`` after a predecessor's death."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self._reserved = False

    @classmethod
    def create(
        cls, path: Path, *, spec: bytes, slot_bytes: int, num_slots: int, num_readers: int
    ) -> RingWriter:
        """Make the ring's file. ``spec`` says what is in the slots; the ring does not look into it.

        Raises:
            InputError: shared memory is full, or a size is out of range.
            FileExistsError: the ring is there already (``adopt`` it, or unlink it).
        """
        if not 1 <= num_readers <= MAX_READERS:
            raise InputError(
                f"num_readers {num_readers} is not in 1..{MAX_READERS}", remedy="share a reader"
            )
        if slot_bytes < 1 or num_slots < 1 or len(spec) > MAX_SPEC_BYTES:
            raise InputError(
                f"slot_bytes {slot_bytes}, num_slots {num_slots} or spec size {len(spec)} is out of range",
                remedy=f"use at least 1 slot of 1 byte, and a spec of at most {MAX_SPEC_BYTES} bytes",
            )

        def fill(segment: Segment) -> None:
            words, me = segment.words, ProcessId.current()
            words[_SLOT_BYTES], words[_NUM_SLOTS] = slot_bytes, num_slots
            words[_NUM_READERS], words[_SPEC_BYTES] = num_readers, len(spec)
            words[_PID], words[_START] = me.pid, me.start_ticks
            segment.buffer[PAGE_BYTES : PAGE_BYTES + len(spec)] = spec

        nbytes = PAGE_BYTES + round_up(len(spec), PAGE_BYTES) + num_slots * _stride(slot_bytes)
        return cls(Segment.create(path, nbytes, _MAGIC, _VERSION, fill))

    @classmethod
    def adopt(cls, path: Path) -> RingWriter:
        """Go on at ``head`` where a dead writer stopped; a slot it had begun is begun anew.

        Raises:
            HeadwayError: the recorded writer is alive.
            CorruptError: no ring. FileNotFoundError: no file.
        """
        segment = Segment.open(path, _MAGIC, _VERSION, writable=True)
        guard = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # two adopters at once: the second finds the first alive
            fcntl.flock(guard, fcntl.LOCK_EX)
            writer = ProcessId(segment.words[_PID], segment.words[_START])
            if writer.alive():
                segment.close()
                raise HeadwayError(
                    f"ring {path} is being written by process {writer.pid}",
                    remedy="end that process first",
                )
            me = ProcessId.current()
            segment.words[_PID] = 0  # never the new pid with the old start time
            segment.words[_START] = me.start_ticks
            segment.words[_PID] = me.pid
        finally:
            os.close(guard)
        return cls(segment)

    def reserve(self) -> memoryview | None:
        """The next slot's payload to write into (writable, ``slot_bytes``), or None while the ring is full.

        Calling it again before ``publish`` gives the same slot.
        """
        words, head = self._words, self._words[_HEAD]
        if head - self.slowest_tail() >= self.num_slots:
            return None
        # ``ended`` still names the slot that lay here before
        words[self._slot(head) + _BEGUN] = head + 1
        self._reserved = True
        return self._payload(head)

    def publish(self, digest: int = 0) -> int:
        """Hand the reserved slot to the readers; returns its number. ``digest`` (u64) travels along."""
        if not self._reserved:
            raise RuntimeError("publish without a reserved slot")
        words, head = self._words, self._words[_HEAD]
        slot = self._slot(head)
        words[slot + _DIGEST] = digest
        words[slot + _ENDED] = head + 1
        failpoint("ring.publish", seq=head)
        words[_HEAD] = head + 1
        self._reserved = False
        return head

    def slowest_tail(self) -> int:
        """Slots that every reader has released."""
        return min(self._words[_TAILS + k * _LINE] for k in range(self.num_readers))

    def close(self) -> None:
        """Unmap and give up the writer's place, so that another process may adopt at once."""
        if not self._segment.closed and self.writer == ProcessId.current():
            self._words[_PID] = 0
        super().close()


class RingReader(_Ring):
    """Reader number ``reader``. One process per number at a time.

    A reader that opens again starts at its first slot not yet released: what its predecessor had taken but
    not released comes again.
    """

    def __init__(self, path: Path, reader: int) -> None:
        """Raises InputError for a reader number the ring does not have; FileNotFoundError, CorruptError."""
        super().__init__(Segment.open(path, _MAGIC, _VERSION, writable=True))
        if not 0 <= reader < self.num_readers:
            num_readers = self.num_readers
            self.close()
            raise InputError(
                f"ring {path} has no reader {reader}", remedy=f"use 0..{num_readers - 1}"
            )
        self.reader = reader
        self._tail = _TAILS + reader * _LINE
        self._next = self._words[self._tail]

    @property
    def tail(self) -> int:
        """Slots released by this reader."""
        return self._words[self._tail]

    def poll(self) -> tuple[int, memoryview] | None:
        """The next slot as (sequence number, read-only payload), or None if none is published yet.

        The payload may be read until ``release``; several slots may be taken before the first is released.

        Raises:
            CorruptError: the slot is not whole.
        """
        seq = self._next
        if self._words[_HEAD] <= seq:
            return None
        self._check(seq)
        self._next = seq + 1
        return seq, self._payload(seq).toreadonly()

    def get(
        self, timeout_s: float, abort: Callable[[], bool] | None = None
    ) -> tuple[int, memoryview]:
        """``poll`` until a slot is there. Waits on through a writer's death: a successor may adopt the ring.

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
                    f"no slot {self._next} in ring {self.path} after {timeout_s:g} s (its writer is {state})",
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
        return self._words[self._slot(seq) + _DIGEST]

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
        begun, ended = self._words[slot + _BEGUN], self._words[slot + _ENDED]
        if begun != seq + 1 or ended != seq + 1:
            raise CorruptError(
                f"slot {seq} of ring {self.path} is marked {begun - 1}, {ended - 1}",
                remedy="open a new ring; two processes may be writing this one",
            )
