"""The layout of a ring file: a header page, the specification, the slots, and who has which place.

Who writes which word of the header:

    writer    its pid and start ticks, ``head`` (slots published); of each slot ``begun``, ``ended``
              and ``digest``
    reader k  on its own line: slots released, its pid and start ticks, whether it has left

A place, the writer's or a reader's, is taken and released under a lock on the file, so two
processes never hold the same one; the place of a dead process is taken over.

Slot ``n`` of the stream is stored at index ``n % num_slots``. Its ``begun`` is set to n
+ 1 before the payload and ``ended`` to n + 1 after it, so that an incomplete or
overwritten slot is recognised.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from headway.common.errors import CorruptError
from headway.common.node.process import ProcessId
from headway.common.node.segment import LINE_BYTES, PAGE_BYTES, WORD_BYTES, Segment, round_up

MAGIC = b"HWRING\0\0"
VERSION = 2
MAX_READERS = 56  # what the page has room for; every stage of a replica may read
MAX_SPEC_BYTES = 1 << 20

LINE = LINE_BYTES // WORD_BYTES
SLOT_BYTES, NUM_SLOTS, NUM_READERS, SPEC_BYTES, SLOT_FORMAT = range(LINE, LINE + 5)
PID, START = range(2 * LINE, 2 * LINE + 2)
HEAD = 3 * LINE
READERS = 4 * LINE  # one line per reader:
TAIL, READER_PID, READER_START, LEFT = range(4)
BEGUN, ENDED, DIGEST = range(3)


class RingFile:
    """What writer and reader share: the layout, and how a place is taken."""

    def __init__(self, segment: Segment) -> None:
        """Raises CorruptError, and closes ``segment``, for sizes that no ring has."""
        words = segment.words
        self._segment = segment
        if segment.nbytes < PAGE_BYTES:
            segment.close()
            raise CorruptError(f"{segment.path} is too short for a ring", remedy="remove the file")
        self._words = words
        self.path = segment.path
        self.slot_bytes = words[SLOT_BYTES]
        self.slot_format = words[SLOT_FORMAT]
        self.num_slots = words[NUM_SLOTS]
        self.num_readers = words[NUM_READERS]
        spec_bytes = words[SPEC_BYTES]
        self._refuse_impossible(spec_bytes)
        self.spec = bytes(segment.buffer[PAGE_BYTES : PAGE_BYTES + spec_bytes])
        self._first_slot = PAGE_BYTES + round_up(spec_bytes, PAGE_BYTES)
        self._stride = stride(self.slot_bytes)
        if self._first_slot + self.num_slots * self._stride > segment.nbytes:
            segment.close()
            raise CorruptError(f"{self.path} is too short for its slots", remedy="remove the file")

    def _refuse_impossible(self, spec_bytes: int) -> None:
        for name, value, highest in (
            ("slot_bytes", self.slot_bytes, self._segment.nbytes),
            ("num_slots", self.num_slots, self._segment.nbytes),
            ("num_readers", self.num_readers, MAX_READERS),
            ("spec size", spec_bytes + 1, MAX_SPEC_BYTES + 1),
        ):
            if not 1 <= value <= highest:
                self._segment.close()
                raise CorruptError(
                    f"{self.path} has {name} {value}, which no ring has", remedy="remove the file"
                )

    def _slot(self, seq: int) -> int:
        """Index of the slot header's first word."""
        return (self._first_slot + seq % self.num_slots * self._stride) // WORD_BYTES

    def _payload(self, seq: int) -> memoryview:
        start = self._slot(seq) * WORD_BYTES + LINE_BYTES
        return self._segment.buffer[start : start + self.slot_bytes]

    @property
    def head(self) -> int:
        """Number of slots published so far."""
        return self._words[HEAD]

    @property
    def writer(self) -> ProcessId:
        """The process that writes, or wrote last; pid 0 after a clean close."""
        return ProcessId(self._words[PID], self._words[START])

    def reader_process(self, reader: int) -> ProcessId:
        """The process that reads under this number, or read last; pid 0 after a close."""
        line = reader_line(reader)
        return ProcessId(self._words[line + READER_PID], self._words[line + READER_START])

    def all_left(self) -> bool:
        """Whether every reader has opened the ring and closed it again."""
        return all(self._words[reader_line(k) + LEFT] for k in range(self.num_readers))

    def _take_place(self, line: int) -> None:
        """Record this process at ``line``: pid, start ticks.

        The pid is never there with another process's start time.
        """
        me = ProcessId.current()
        self._words[line] = 0
        self._words[line + 1] = me.start_ticks
        self._words[line] = me.pid

    def close(self) -> None:
        """Unmap. Payload views handed out stay valid."""
        self._words = memoryview(b"").cast("B")
        self._segment.close()

    def unlink(self) -> None:
        """Remove the file; the other side keeps its mapping."""
        self._segment.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the ring until the block ends.

    Until then no other process takes or releases a place, or removes the ring.

    Raises:
        FileNotFoundError: there is no ring, or it was removed while this process
            waited for the lock.
    """
    guard = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not os.fstat(guard).st_nlink:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        yield
    finally:
        os.close(guard)


def reader_line(reader: int) -> int:
    """Index of the first word that a reader writes."""
    return READERS + reader * LINE


def stride(slot_bytes: int) -> int:
    """Bytes from one slot to the next."""
    return LINE_BYTES + round_up(slot_bytes, LINE_BYTES)
