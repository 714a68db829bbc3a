"""The flight ring: a rank's latest actions, readable while it hangs and after its death.

Fixed 64-byte records, one writing process, any number of readers. ``begin`` writes a record whose
``end_ns`` is 0 (open), ``end`` closes it. Old records are overwritten; the ring keeps the newest
``capacity - 1``. Times are ``time.monotonic_ns``, the same clock in all processes of a host.

A record with the flag ``ON_DEVICE`` brackets the launch of work that a device does later. The
writer adds the device's times when it knows them (``correct``); ``device_times`` applies them.

The record is written before ``head`` counts it, so a writer that dies in between leaves no
partial record visible. The first page also has the rank's group table
(``headway.common.node.group_table``).
"""

from __future__ import annotations

import struct
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError, InputError
from headway.common.node.flight_header import (
    ALIVE,
    ASKED_NS,
    CAPACITY,
    GENERATION,
    HEAD,
    PASSED,
    PASSED_NS,
    PID,
    PROGRESS,
    RANK,
    START,
    WAITS,
    FlightHeader,
    read_header,
)
from headway.common.node.flight_record import ABORTED, BROKEN, RECORD, US, Record, plain
from headway.common.node.group_table import TABLE_BYTES, GroupCount, GroupTable, read_table
from headway.common.node.process import ProcessId
from headway.common.node.segment import LINE_BYTES, PAGE_BYTES, WORD_BYTES, Segment

_MAGIC = b"HWFLIGHT"
_VERSION = 2

_PACK = struct.Struct("<BBHiiIQQQQQQ")
assert Record._fields == RECORD.names
assert RECORD.itemsize == _PACK.size == LINE_BYTES

_LINE = LINE_BYTES // WORD_BYTES
_TABLE = PAGE_BYTES // WORD_BYTES - TABLE_BYTES // WORD_BYTES
_RECORDS = PAGE_BYTES // WORD_BYTES
# words of peer with the collective, start_ns, end_ns and device in a record
_COLLECTIVE, _START_NS, _END, _DEVICE = 2, 4, 5, 7
_PEER = 0xFFFF
_LATEST = (1 << 31) - 1  # of a device's times, in us: 35 minutes
_FLAGS_AT = 2  # byte of flags in a record


class FlightWriter:
    """Writes the rank's records. Its threads may share one writer.

    ``waiting`` is a block in which the main thread waits for others; one word at each end.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._buffer = segment.buffer
        self._words = segment.words
        self._capacity = self._words[CAPACITY]
        self._generation = self._words[GENERATION]
        self._head = self._words[HEAD]
        self._lock = threading.Lock()
        self.waiting = _Waiting(self)
        self.table = GroupTable(self._words[_TABLE:_RECORDS])

    @classmethod
    def create(cls, path: Path, rank: int, capacity: int = 65536) -> FlightWriter:
        """Open the rank's ring: a new file, or that of the rank's earlier process with its records.

        Raises:
            InputError: shared memory is full; or the file belongs to another rank or
                has another capacity.
        """
        if capacity < 2:
            raise InputError(f"flight capacity {capacity} is below 2", remedy="use a larger one")

        def fill(new: Segment) -> None:
            new.words[RANK], new.words[CAPACITY] = rank, capacity

        nbytes = PAGE_BYTES + capacity * LINE_BYTES
        segment = Segment.create_or_open(path, nbytes, _MAGIC, _VERSION, fill)
        words, me = segment.words, ProcessId.current()
        if words[RANK] != rank or words[CAPACITY] != capacity:
            found = f"rank {words[RANK]}, capacity {words[CAPACITY]}"
            segment.close()
            raise InputError(
                f"{path} is of {found}, not {rank}, {capacity}", remedy="remove the file"
            )
        words[PID] = 0  # never the new pid with the old start time
        words[START], words[WAITS] = me.start_ticks, 0
        words[PASSED] = words[PASSED_NS] = words[ASKED_NS] = 0
        words[PID] = me.pid
        return cls(segment)

    def set_generation(self, generation: int) -> None:
        """Stamp the records that follow."""
        self._generation = generation
        self._words[GENERATION] = generation

    def begin(
        self,
        kind: int,
        step: int = -1,
        micro_batch: int = -1,
        chunk: int = 0,
        peer: int = -1,
        nbytes: int = 0,
        flags: int = 0,
        collective: int = 0,
    ) -> int:
        """Open a record that starts now; returns its sequence number for ``end``.

        ``collective``: which one it waits for or issues, as ``GroupLine.enter`` names it.
        """
        with self._lock:
            seq = self._head
            _PACK.pack_into(
                self._buffer,
                PAGE_BYTES + seq % self._capacity * LINE_BYTES,
                kind, chunk, flags, micro_batch, step, self._generation,
                peer & _PEER | collective << 16,
                seq, time.monotonic_ns(), 0, nbytes, 0,
            )  # fmt: skip
            self._head = seq + 1
            self._words[HEAD] = seq + 1
        return seq

    def name(self, seq: int, collective: int) -> None:
        """Add to the open record ``seq`` which collective it has issued."""
        with self._lock:
            if self._head - seq <= self._capacity:
                at = _RECORDS + seq % self._capacity * _LINE + _COLLECTIVE
                self._words[at] = self._words[at] & _PEER | collective << 16

    def end(self, seq: int, *, error: type[BaseException] | None = None) -> None:
        """Close record ``seq`` now; with ``error``, an exception has ended what it records.

        A record that was already overwritten only counts as progress.
        """
        with self._lock:
            words = self._words
            if self._head - seq <= self._capacity:
                if error is not None:
                    at = PAGE_BYTES + seq % self._capacity * LINE_BYTES + _FLAGS_AT
                    is_abort = getattr(error, "is_abort", False)
                    self._buffer[at] |= BROKEN | ABORTED if is_abort else BROKEN
                words[_RECORDS + seq % self._capacity * _LINE + _END] = time.monotonic_ns()
            words[PROGRESS] += 1

    def add(self, kind: int, start_ns: int, end_ns: int, *, step: int) -> None:
        """One record of what is over already, with its times."""
        with self._lock:
            seq = self._head
            _PACK.pack_into(
                self._buffer,
                PAGE_BYTES + seq % self._capacity * LINE_BYTES,
                kind, 0, 0, -1, step, self._generation, _PEER, seq, start_ns, end_ns, 0, 0,
            )  # fmt: skip
            self._head = seq + 1
            self._words[HEAD] = seq + 1
            self._words[PROGRESS] += 1

    def correct(self, seq: int, start_ns: int, end_ns: int) -> None:
        """Add when a device did the work of record ``seq``, in ns of the host's clock.

        One word is written, so a reader sees both times or none. A record that was already
        overwritten stays as it is.
        """
        with self._lock:
            if self._head - seq <= self._capacity and len(self._words):
                at = _RECORDS + seq % self._capacity * _LINE
                launched_us = self._words[at + _START_NS] // US
                late_us = min(max(0, start_ns // US - launched_us), _LATEST)
                span_us = min(max(0, end_ns // US - launched_us - late_us), _LATEST)
                self._words[at + _DEVICE] = late_us << 32 | span_us + 1

    def record(self, kind: int, **fields: int) -> _Record:
        """Record what a ``with`` block does, between ``begin`` and ``end``.

        An exception marks the record as BROKEN, one with a true ``is_abort`` as ABORTED too.
        """
        return _Record(self, kind, fields)

    def count_life(self) -> None:
        """Show that the process runs; from a thread that never waits for other ranks."""
        with self._lock:
            if len(self._words):  # else it was closed meanwhile
                self._words[ALIVE] += 1

    def show_device(self, sequence: int, *, is_end: bool) -> None:
        """Show that the device has passed the beginning or end of a record; -1 for none yet."""
        now_ns = time.monotonic_ns()
        with self._lock:
            if words := self._words:
                passed = sequence + 1 << 1 | is_end
                if words[PASSED] != passed or not words[PASSED_NS]:
                    words[PASSED_NS], words[PASSED] = now_ns, passed
                words[ASKED_NS] = now_ns

    def close(self) -> None:
        self.table.close()
        with self._lock:
            self._buffer = self._words = memoryview(b"").cast("B")
        self._segment.close()


class _Waiting:
    """One object for all waits, since a main thread has one at a time."""

    __slots__ = ("_count", "_writer")

    def __init__(self, writer: FlightWriter) -> None:
        self._writer, self._count = writer, 0

    def __enter__(self) -> None:
        self._count = count = self._count + 1
        if words := self._writer._words:  # empty once the ring is closed
            words[WAITS] = count

    def __exit__(self, *_: object) -> None:
        self._count = count = self._count + 1
        if words := self._writer._words:
            words[WAITS] = count


class _Record:
    __slots__ = ("_fields", "_kind", "_seq", "_writer")

    def __init__(self, writer: FlightWriter, kind: int, fields: dict[str, int]) -> None:
        self._writer, self._kind, self._fields, self._seq = writer, kind, fields, -1

    def __enter__(self) -> int:
        self._seq = self._writer.begin(self._kind, **self._fields)
        return self._seq

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._writer.end(self._seq, error=kind)


class FlightReader:
    """Reads the records of a rank; never writes, never waits."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError, CorruptError."""
        self._segment = Segment.open(path, _MAGIC, _VERSION)
        self._words = self._segment.words
        self._capacity = self._words[CAPACITY]
        room = (self._segment.nbytes - PAGE_BYTES) // LINE_BYTES
        if self._capacity != room:
            self._segment.close()
            raise CorruptError(
                f"{path} has room for {room} records, its capacity is {self._capacity}",
                remedy="remove the file",
            )
        self._buffer = self._segment.buffer

    @property
    def rank(self) -> int:
        """Whose ring it is."""
        return int(self._words[RANK])

    @property
    def head(self) -> int:
        """Records begun, over all processes of the rank."""
        return int(self._words[HEAD])

    @property
    def header(self) -> FlightHeader:
        return read_header(self._words, self._capacity)

    def groups(self) -> tuple[GroupCount, ...]:
        """What the rank has entered and finished in each group of its generation."""
        words = self._words
        if not len(words):
            return ()
        return read_table(words[_TABLE:_RECORDS], words[GENERATION])

    def snapshot(self, since: int = 0) -> npt.NDArray[Any]:
        """Copy the records from sequence ``since`` on that still exist.

        They are in order and have dtype ``RECORD``.

        Records that the writer overwrote during the copy are left out.
        """
        head = self._words[HEAD]
        first = max(since, head - self._capacity + 1, 0)
        if first >= head:
            return np.empty(0, RECORD)
        copy = np.frombuffer(self._copy(first, head), RECORD)
        # The record at the current head may be half written: it replaces head - capacity.
        oldest = self._words[HEAD] - self._capacity + 1
        copy, first = copy[max(0, oldest - first) :], max(first, oldest)
        whole = copy["sequence"] == np.arange(first, first + len(copy), dtype=np.uint64)
        return copy if whole.all() else copy[whole]

    def _copy(self, first: int, head: int) -> bytearray:
        """The bytes of the records from ``first`` to before ``head``, in one or two pieces."""
        begin, end = self._place(first), self._place(head - 1) + LINE_BYTES
        if begin < end:
            return bytearray(self._buffer[begin:end])
        last = PAGE_BYTES + self._capacity * LINE_BYTES
        return bytearray(self._buffer[begin:last]) + self._buffer[PAGE_BYTES:end]

    def _place(self, sequence: int) -> int:
        """Where in the buffer record ``sequence`` begins."""
        return PAGE_BYTES + sequence % self._capacity * LINE_BYTES

    def at(self, sequence: int) -> Record | None:
        """Record ``sequence``, or None if it is overwritten."""
        if not 0 <= sequence < self._words[HEAD]:
            return None
        place = self._place(sequence)
        found = plain(bytes(self._buffer[place : place + LINE_BYTES]))
        oldest = self._words[HEAD] - self._capacity + 1
        return found if found.sequence == sequence and sequence >= oldest else None

    def last(self) -> Record | None:
        """The newest record, or None."""
        for _ in range(3):  # a writer that laps a tiny ring may overtake this read once
            found = self.at(self._words[HEAD] - 1)
            if found is not None or not self._words[HEAD]:
                return found
        return None

    def close(self) -> None:
        self._buffer = self._words = memoryview(b"").cast("B")
        self._segment.close()
