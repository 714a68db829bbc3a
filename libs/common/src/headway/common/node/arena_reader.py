"""Read access to an arena: which snapshots it holds, and their content.

Nothing here writes, so it also works on a read-only mapping, while a worker writes and after its
death. Damaged words are detected: see ``arena_format``.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError, HeadwayError
from headway.common.node import arena_format as form
from headway.common.node.arena_format import NUM_SLOTS, Shape, slot_word
from headway.common.node.process import ProcessId
from headway.common.node.segment import LINE_BYTES, Segment, round_up

_NO_FILE = frozenset({errno.EISDIR, errno.ELOOP, errno.ENXIO})
"""Errors of opening a folder, a link or a socket."""

Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A sealed snapshot.

    ``released`` means that it is not wanted, or no longer; ``seal`` is its unique number;
    ``digest`` covers its data and extra state at the time of sealing.
    """

    index: int
    step: int
    generation: int
    wanted: bool
    released: bool
    seal: int
    extra_nbytes: int
    digest: int
    doubtful: bool = False
    """Whether its worker would not have it become a checkpoint: its step was skipped, say."""


class ArenaReader:
    """One rank's arena, for reading. Usable as a context manager that closes."""

    def __init__(self, segment: Segment) -> None:
        self._shape, self.layout = Shape.read(segment)
        self._segment = segment
        self._words = segment.words
        self.path = segment.path
        self.rank = self._shape.rank
        self.run_id = self._shape.run_id
        self.slot_bytes = self._shape.slot_bytes
        self.extra_bytes = self._shape.extra_bytes

    @classmethod
    def open(cls, path: Path, *, writable: bool = True) -> Self:
        """Map an existing arena.

        It is writable for the daemon and a restarted worker, read-only otherwise.

        Raises:
            FileNotFoundError: there is no file. CorruptError: the file is not an arena of this
                version, or is damaged.
        """
        try:
            segment = Segment.open(path, form.MAGIC, form.VERSION, writable=writable)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            raise form.damaged(path, str(error.strerror)) from error
        try:
            arena = cls(segment)
            arena._check_numbers()
        except BaseException:
            segment.close()
            raise
        return arena

    def check(self) -> None:
        """Check the file again, in case it was damaged after it was mapped.

        Raises:
            CorruptError: the path leads to another file or none, or the header is damaged.
        """
        self._segment.check(form.MAGIC, form.VERSION)
        if Shape.read(self._segment) != (self._shape, self.layout):
            raise form.damaged(self.path, "its header has changed")
        self._check_numbers()

    @property
    def writer(self) -> ProcessId:
        """The process that seals snapshots, or did last; pid 0 after a clean close."""
        return ProcessId(self._words[form.PID], self._words[form.START])

    @property
    def committed(self) -> int:
        """The newest step that this rank knows to be sealed by all ranks, -1 before the first."""
        return self._number(form.COMMITTED, "committed") - 1

    def sealed(self) -> list[SlotInfo]:
        """All sealed snapshots whose words are valid, oldest first. Safe while a worker writes."""
        found = [info for index in range(NUM_SLOTS) if (info := self._info(index)) is not None]
        return sorted(found, key=lambda info: (info.step, info.seal))

    def damage(self) -> list[str]:
        """Why damaged slots are left out of ``sealed``; each text names its slot."""
        found = []
        for index in range(NUM_SLOTS):
            words, slot = self._words, slot_word(index)
            state, seal = words[slot + form.STATE], words[slot + form.SEAL]
            if state not in form.STATES:
                found.append(f"slot {index} of {self.path} has the unknown state {state:#x}")
            elif state == form.SEALED and not self._is_sound(index) and self._holds(index, seal):
                found.append(
                    f"the header of slot {index} of {self.path} does not match its checksum"
                )
        return found

    def verify(self, info: SlotInfo) -> None:
        """Read the whole slot and compare its content with its digest.

        Call this before using the content.

        Raises:
            CorruptError: the content differs; the text names file, slot and step.
            HeadwayError: the worker has dropped the snapshot in the meantime.
        """
        data, extra = self.read(info)
        is_sound = form.content_digest(form.chunk_digests(data), extra) == info.digest
        if not self.unchanged(info):
            raise HeadwayError(f"the snapshot of step {info.step} in {self.path} was dropped")
        if not is_sound:
            raise CorruptError(
                f"slot {info.index} of {self.path}, step {info.step}, does not match its digest",
                remedy="an older snapshot or checkpoint is used; check the node's memory",
            )

    def newest(self) -> SlotInfo | None:
        """The sealed snapshot with the highest step."""
        sealed = self.sealed()
        return sealed[-1] if sealed else None

    def view(self, step: int) -> tuple[Bytes, bytes]:
        """Data and extra state of the snapshot of ``step``, not verified.

        The data is a read-only view of ``slot_bytes``, the extra state a copy.

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
        """Data and extra state of ``info``'s slot.

        While a worker runs, check ``unchanged`` afterwards.
        """
        data = self._segment.array(np.uint8, self._data_start(info.index), self.slot_bytes)
        data.flags.writeable = False
        start = self._extra_start(info.index)
        return data, bytes(self._segment.buffer[start : start + info.extra_nbytes])

    def unchanged(self, info: SlotInfo) -> bool:
        """Whether the slot still holds exactly that snapshot.

        Check this after reading the snapshot, before using it.
        """
        return self._holds(info.index, info.seal)

    def close(self) -> None:
        """Unmap. Views handed out stay valid."""
        self._words = memoryview(b"").cast("B")
        self._segment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _info(self, index: int) -> SlotInfo | None:
        words, slot = self._words, slot_word(index)
        seal = words[slot + form.SEAL]
        if words[slot + form.STATE] != form.SEALED or not self._is_sound(index):
            return None
        wanted = bool(words[slot + form.WANTED])
        # With a damaged number nothing counts as released, and the daemon
        # flushes the snapshot again.
        released = form.unpack_number(words[slot + form.RELEASED]) or 0
        info = SlotInfo(
            index=index,
            step=words[slot + form.STEP] - 1,
            generation=words[slot + form.GENERATION],
            wanted=wanted,
            released=not wanted or released >= seal,
            seal=seal,
            extra_nbytes=words[slot + form.EXTRA_USED],
            digest=words[slot + form.DIGEST],
            doubtful=form.unpack_number(words[slot + form.DOUBTFUL]) == seal,
        )
        # The worker may have reused the slot during the read; then none of it can be trusted.
        return info if self.unchanged(info) else None

    def _holds(self, index: int, seal: int) -> bool:
        words, slot = self._words, slot_word(index)
        return words[slot + form.STATE] == form.SEALED and words[slot + form.SEAL] == seal

    def _checksum(self, index: int) -> int:
        return form.slot_checksum(self._words, index, self._shape.layout_digest)

    def _is_sound(self, index: int) -> bool:
        return self._words[slot_word(index) + form.CHECKSUM] == self._checksum(index)

    def _number(self, index: int, name: str) -> int:
        value = form.unpack_number(self._words[index])
        if value is None:
            raise form.damaged(self.path, f"the word {name!r} does not match its checksum")
        return value

    def _check_numbers(self) -> None:
        self._number(form.COMMITTED, "committed")
        self._number(form.SEALS, "seals")

    def _data_start(self, index: int) -> int:
        return self._shape.first_slot + index * self._shape.stride

    def _extra_start(self, index: int) -> int:
        return self._data_start(index) + round_up(self.slot_bytes, LINE_BYTES)
