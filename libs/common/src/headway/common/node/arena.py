"""A rank's three-slot snapshot memory: written by its worker, read by whoever must restore or flush.

The file survives its users. A slot counts when its state word says sealed, and that word is written last,
so a worker that dies at any point leaves the older snapshots as they were.

Who writes which word (u64, aligned):

    worker   its pid and start ticks, ``committed`` (step + 1), ``seals`` (snapshots begun, ever),
             and per slot: state, step + 1, generation, wanted (1 = make durable), extra_nbytes,
             seal (its number, from ``seals``)
    daemon   per slot: ``released``, the seal number of the last wanted snapshot it finished or gave up

One process at a time is the worker: whoever writes its words claims the arena first, in place of a
dead one.

A wanted snapshot pins its slot until it is released. The newest committed slot is never touched either, and
one slot is left: enough because step s is sealed before its rank enters the norm all-reduce of step s + 1,
whose end commits s. A seal number, unlike a step, never comes twice, so a step done again after a recovery
cannot be taken for its first attempt.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.common.node.failpoints import failpoint
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import check_run_id
from headway.common.node.segment import LINE_BYTES, PAGE_BYTES, WORD_BYTES, Segment, round_up

_MAGIC = b"HWARENA\0"
_VERSION = 1
NUM_SLOTS = 3
EMPTY, WRITING, SEALED = range(3)

_LINE = LINE_BYTES // WORD_BYTES
_RANK, _RUN_ID, _LAYOUT_BYTES, _SLOT_BYTES, _EXTRA_BYTES, _NUM_SLOTS = range(_LINE, _LINE + 6)
_PID, _START = range(_LINE + 6, _LINE + 8)
_COMMITTED, _SEALS = range(2 * _LINE, 2 * _LINE + 2)
_SLOTS = 3 * _LINE  # two lines per slot: the worker's, the daemon's
_STATE, _STEP, _GENERATION, _WANTED, _EXTRA_USED, _SEAL = range(6)
_RELEASED = _LINE

Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A sealed snapshot. ``released``: not wanted (any more); ``seal`` numbers it for all time."""

    index: int
    step: int
    generation: int
    wanted: bool
    released: bool
    seal: int
    extra_nbytes: int


@dataclass(frozen=True, slots=True)
class ArenaSlot:
    """A slot being written: fill ``data``, then ``Arena.seal`` it."""

    index: int
    step: int
    data: Bytes


class Arena:
    """One rank's arena. Made by ``create`` or ``open``; usable as a context manager that closes."""

    def __init__(self, segment: Segment) -> None:
        words = segment.words
        self._segment = segment
        self._words = words
        self._claimed_by = -1
        self.path = segment.path
        self.rank = words[_RANK]
        self.run_id = words[_RUN_ID].to_bytes(WORD_BYTES, "little").decode("ascii", "replace")
        self.slot_bytes = words[_SLOT_BYTES]
        self.extra_bytes = words[_EXTRA_BYTES]
        layout_bytes = words[_LAYOUT_BYTES]
        self.layout = bytes(segment.buffer[PAGE_BYTES : PAGE_BYTES + layout_bytes])
        self._first_slot = PAGE_BYTES + round_up(layout_bytes, PAGE_BYTES)
        self._stride = _stride(self.slot_bytes, self.extra_bytes)
        if (
            words[_NUM_SLOTS] != NUM_SLOTS
            or self._first_slot + NUM_SLOTS * self._stride > segment.nbytes
        ):
            segment.close()
            raise CorruptError(f"{self.path} is too short for its slots", remedy="remove the file")

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        run_id: str,
        rank: int,
        slot_bytes: int,
        layout: bytes,
        extra_bytes: int = 65536,
    ) -> Arena:
        """Make and claim the file, three slots of ``slot_bytes`` data and ``extra_bytes`` extra.

        Raises:
            InputError: shared memory is full, or a size is out of range.
            FileExistsError: the rank has an arena already (``open`` it, or unlink it).
        """
        check_run_id(run_id)
        if slot_bytes < 1 or rank < 0 or extra_bytes < 0:
            raise InputError(
                f"slot_bytes {slot_bytes}, rank {rank} or extra_bytes {extra_bytes} is out of range",
                remedy="snapshot at least one byte",
            )

        me = ProcessId.current()

        def fill(segment: Segment) -> None:
            words = segment.words
            words[_RANK], words[_RUN_ID] = rank, int.from_bytes(run_id.encode(), "little")
            words[_LAYOUT_BYTES], words[_SLOT_BYTES] = len(layout), slot_bytes
            words[_EXTRA_BYTES], words[_NUM_SLOTS] = extra_bytes, NUM_SLOTS
            words[_PID], words[_START] = me.pid, me.start_ticks
            segment.buffer[PAGE_BYTES : PAGE_BYTES + len(layout)] = layout

        nbytes = (
            PAGE_BYTES
            + round_up(len(layout), PAGE_BYTES)
            + NUM_SLOTS * _stride(slot_bytes, extra_bytes)
        )
        arena = cls(Segment.create(path, nbytes, _MAGIC, _VERSION, fill))
        arena._claimed_by = me.pid
        return arena

    @classmethod
    def open(cls, path: Path, *, writable: bool = True) -> Arena:
        """Map an existing arena: the daemon, a restarted worker (both writable), or somebody who only reads.

        Raises:
            FileNotFoundError, CorruptError: no file; not an arena of this version.
        """
        return cls(Segment.open(path, _MAGIC, _VERSION, writable=writable))

    # The worker's side.

    @property
    def writer(self) -> ProcessId:
        """The process that seals snapshots, or did last; pid 0 after a clean close."""
        return ProcessId(self._words[_PID], self._words[_START])

    def claim(self) -> None:
        """Become the arena's worker, in place of a dead one; ``begin`` and its like do it too.

        Raises:
            HeadwayError: another process that lives is the worker.
        """
        if self._claimed_by == os.getpid() or not self._segment.writable:
            return
        words, me = self._segment.words, ProcessId.current()
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(
                FileNotFoundError
            ):  # unlinked: nobody else can open it any more
                guard = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, guard)
                fcntl.flock(guard, fcntl.LOCK_EX)  # of two at once the second finds the first alive
            writer = self.writer
            if writer != me and writer.alive():
                raise HeadwayError(
                    f"arena {self.path} is being written by process {writer.pid}",
                    remedy="end that process first, or give each process its own rank",
                )
            words[_PID] = 0  # never the new pid with the old start time
            words[_START] = me.start_ticks
            words[_PID] = me.pid
        self._claimed_by = me.pid

    @property
    def committed(self) -> int:
        """The newest step that this rank knows to be sealed by all ranks, -1 before the first."""
        return self._words[_COMMITTED] - 1

    def begin(self, step: int, generation: int) -> ArenaSlot:
        """Take a slot for the snapshot of ``step``: an empty or unfinished one, else the oldest that is free.

        Never the newest committed one, one sealed but not yet committed, or one that is wanted and
        unreleased.

        Raises:
            HeadwayError: no slot is free; the caller sealed two steps without a commit between
                them. Or another process is the worker.
        """
        self.claim()
        index = self._free_slot()
        words, slot = self._words, _slot(index)
        words[slot + _STATE] = WRITING
        words[_SEALS] += 1
        words[slot + _SEAL] = words[_SEALS]
        words[slot + _WANTED] = 0
        words[slot + _STEP] = step + 1
        words[slot + _GENERATION] = generation
        start = self._data_start(index)
        return ArenaSlot(index, step, self._segment.array(np.uint8, start, self.slot_bytes))

    def seal(self, slot: ArenaSlot, extra: bytes = b"", wanted: bool = False) -> None:
        """Make the slot count: everything is in place before the state word changes.

        ``wanted`` asks the daemon to make it durable; only while not ``busy``.

        Raises:
            InputError: ``extra`` is longer than the arena allows. ValueError: the slot is not being written.
        """
        words, at = self._words, _slot(slot.index)
        if words[at + _STATE] != WRITING or words[at + _STEP] != slot.step + 1:
            raise ValueError(f"slot {slot.index} is not being written for step {slot.step}")
        if len(extra) > self.extra_bytes:
            raise InputError(
                f"{len(extra)} bytes of extra state exceed the arena's {self.extra_bytes}",
                remedy="create the arena with a larger extra_bytes",
            )
        if wanted and self.busy():
            raise ValueError("a wanted snapshot is still unreleased: ask busy() first")
        start = self._extra_start(slot.index)
        self._segment.buffer[start : start + len(extra)] = extra
        words[at + _EXTRA_USED] = len(extra)
        words[at + _WANTED] = int(wanted)
        failpoint("arena.seal", rank=self.rank, step=slot.step)
        words[at + _STATE] = SEALED

    def commit(self, step: int) -> None:
        """Record that all ranks have sealed ``step`` (the worker's norm all-reduce said so)."""
        self.claim()
        if self._words[_COMMITTED] < step + 1:
            self._words[_COMMITTED] = step + 1

    def invalidate_newer(self, step: int) -> None:
        """Drop every snapshot after ``step``, unfinished ones too: they belong to a generation that is over.

        Dropped slots are free at once, wanted or not; a daemon that was reading one finds out by
        ``unchanged``.
        """
        self.claim()
        if self._words[_COMMITTED] > step + 1:
            self._words[_COMMITTED] = step + 1
        for index in range(NUM_SLOTS):
            slot = _slot(index)
            if self._words[slot + _STATE] == WRITING or self._words[slot + _STEP] > step + 1:
                self._words[slot + _STATE] = EMPTY

    def busy(self) -> bool:
        """A wanted snapshot is sealed and not yet released: ask for no second one."""
        return any(info.wanted and not info.released for info in self.sealed())

    # The daemon's side.

    def wanted(self) -> list[SlotInfo]:
        """Snapshots to make durable now: sealed, committed, wanted, not yet released; oldest first."""
        committed = self.committed
        return [s for s in self.sealed() if s.wanted and not s.released and s.step <= committed]

    def release(self, info: SlotInfo) -> None:
        """The daemon finished, or gave up, making ``info`` durable; its slot may be used again."""
        self._words[_slot(info.index) + _RELEASED] = info.seal

    def unchanged(self, info: SlotInfo) -> bool:
        """Whether the slot still holds exactly that snapshot: ask after reading, before trusting it."""
        slot = _slot(info.index)
        return self._words[slot + _STATE] == SEALED and self._words[slot + _SEAL] == info.seal

    # Everybody's side.

    def sealed(self) -> list[SlotInfo]:
        """All sealed snapshots, oldest first. Safe beside a writing worker."""
        found = [info for index in range(NUM_SLOTS) if (info := self._info(index)) is not None]
        return sorted(found, key=lambda info: (info.step, info.seal))

    def newest(self) -> SlotInfo | None:
        """The sealed snapshot with the highest step."""
        sealed = self.sealed()
        return sealed[-1] if sealed else None

    def view(self, step: int) -> tuple[Bytes, bytes]:
        """Data (read-only view, ``slot_bytes``) and extra (a copy) of the snapshot of ``step``.

        Raises:
            HeadwayError: no sealed snapshot of that step.
        """
        for info in reversed(self.sealed()):
            if info.step == step:
                return self.read(info)
        steps = [info.step for info in self.sealed()]
        raise HeadwayError(
            f"{self.path} holds no snapshot of step {step}", remedy=f"it holds {steps}"
        )

    def read(self, info: SlotInfo) -> tuple[Bytes, bytes]:
        """Data and extra of ``info``'s slot; beside a living worker ask ``unchanged`` afterwards."""
        data = self._segment.array(np.uint8, self._data_start(info.index), self.slot_bytes)
        data.flags.writeable = False
        start = self._extra_start(info.index)
        return data, bytes(self._segment.buffer[start : start + info.extra_nbytes])

    def close(self) -> None:
        """Unmap and give up the worker's place, so that another process may claim it at once.

        Views handed out stay valid.
        """
        if not self._segment.closed and self._claimed_by == os.getpid():
            self._segment.words[_PID] = 0
        self._claimed_by = -1
        self._words = memoryview(b"").cast("B")
        self._segment.close()

    def unlink(self) -> None:
        self._segment.unlink()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _info(self, index: int) -> SlotInfo | None:
        words, slot = self._words, _slot(index)
        seal = words[slot + _SEAL]
        if words[slot + _STATE] != SEALED:
            return None
        wanted, released = bool(words[slot + _WANTED]), words[slot + _RELEASED]
        info = SlotInfo(
            index=index,
            step=words[slot + _STEP] - 1,
            generation=words[slot + _GENERATION],
            wanted=wanted,
            released=not wanted or released >= seal,
            seal=seal,
            extra_nbytes=words[slot + _EXTRA_USED],
        )
        # The worker may have begun anew while we read: then nothing of it can be trusted.
        return info if self.unchanged(info) else None

    def _free_slot(self) -> int:
        infos = {info.index: info for info in self.sealed()}
        committed = self.committed
        newest = max((s.seal for s in infos.values() if s.step <= committed), default=0)
        free = []
        for index in range(NUM_SLOTS):
            info = infos.get(index)
            if info is None:
                return index
            pinned = info.wanted and not info.released
            if not pinned and info.step <= committed and info.seal != newest:
                free.append(info)
        if not free:
            held = [
                (s.step, "wanted" if s.wanted and not s.released else "sealed")
                for s in infos.values()
            ]
            raise HeadwayError(
                f"no free slot in {self.path}: {held}, committed {committed}",
                remedy="commit each step before sealing the next but one",
            )
        return min(free, key=lambda info: info.seal).index

    def _data_start(self, index: int) -> int:
        return self._first_slot + index * self._stride

    def _extra_start(self, index: int) -> int:
        return self._data_start(index) + round_up(self.slot_bytes, LINE_BYTES)


def _slot(index: int) -> int:
    """Index of a slot header's first word."""
    return _SLOTS + index * 2 * _LINE


def _stride(slot_bytes: int, extra_bytes: int) -> int:
    return round_up(round_up(slot_bytes, LINE_BYTES) + extra_bytes, PAGE_BYTES)
