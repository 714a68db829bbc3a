"""The layout of an arena file, and how damage is recognised.

    page 0      line 0: the segment's header; line 1: the ``Shape`` and its checksum;
                line 2: what changes; from line 3: two lines per slot, the first the worker's, the
                second the daemon's ``RELEASED`` and the worker's ``DOUBTFUL``
    page 1..    the layout JSON, then the slots: data, extra state

Every word that decides which bytes become weights is covered: the shape by a checksum, which
includes the layout's digest; a sealed slot's words by a checksum, which includes the digest of its
content; a state by values far apart; a lone number by a checksum in the same word. The pid and the
start ticks are not covered: a damaged pair does not name a process, so the arena can be claimed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash
from headway.common.errors import CorruptError
from headway.common.node.segment import LINE_BYTES, PAGE_BYTES, WORD_BYTES, Segment, round_up

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAGIC = b"HWARENA\0"
VERSION = 3
NUM_SLOTS = 3
NUM_RESIDENT = 2
"""Slots that always have memory; the third has it only while a durable snapshot is being read."""
CHUNK_BYTES = 8 << 20
"""Digests are computed over pieces of this size, the same pieces that the
checkpoint store writes."""

EMPTY, WRITING, SEALED, BAD, HOLE = (
    int.from_bytes(name.ljust(WORD_BYTES, b"\0"), "little")
    for name in (b"empty", b"writing", b"sealed", b"bad", b"hole")
)
"""The states of a slot, chosen so that a few flipped bits never turn one into another. ``HOLE`` is
an empty slot without memory."""
STATES = frozenset({EMPTY, WRITING, SEALED, BAD, HOLE})

_LINE = LINE_BYTES // WORD_BYTES
_SHAPE = range(_LINE, 2 * _LINE - 1)
_CHECKSUM = 2 * _LINE - 1
COMMITTED, SEALS, PID, START = range(2 * _LINE, 2 * _LINE + 4)
_SLOTS = 3 * _LINE
STATE, STEP, GENERATION, WANTED, EXTRA_USED, SEAL, DIGEST, CHECKSUM = range(_LINE)
RELEASED, DOUBTFUL = _LINE, _LINE + 1

_HALF = 32
_SEED = 0x48574152
_MAX_NUMBER = (1 << _HALF) - 1
REMEDY = "remove the file: its rank makes a new one and continues from the newest checkpoint"


@dataclass(frozen=True, slots=True)
class Shape:
    """Which rank and run an arena belongs to, and the sizes of its parts. Constant."""

    rank: int
    run_id: str
    slot_bytes: int
    extra_bytes: int
    layout_bytes: int
    layout_digest: int

    @property
    def first_slot(self) -> int:
        """Byte offset of the first slot."""
        return PAGE_BYTES + round_up(self.layout_bytes, PAGE_BYTES)

    @property
    def stride(self) -> int:
        """Bytes from one slot to the next."""
        return round_up(round_up(self.slot_bytes, LINE_BYTES) + self.extra_bytes, PAGE_BYTES)

    @property
    def nbytes(self) -> int:
        """Size of the file, holes included."""
        return self.first_slot + NUM_SLOTS * self.stride

    @property
    def resident_nbytes(self) -> int:
        """Memory of the file while no durable snapshot is being read."""
        return self.first_slot + NUM_RESIDENT * self.stride

    def write(self, segment: Segment, layout: bytes) -> None:
        """Fill a new segment's header: this shape, the layout, empty slots, nothing committed."""
        words = segment.words
        fields = (
            self.rank, int.from_bytes(self.run_id.encode(), "little"), self.slot_bytes,
            self.extra_bytes, self.layout_bytes, self.layout_digest, NUM_SLOTS,
        )  # fmt: skip
        for index, field in zip(_SHAPE, fields, strict=True):
            words[index] = field
        words[_CHECKSUM] = _shape_checksum(words)
        segment.buffer[PAGE_BYTES : PAGE_BYTES + len(layout)] = layout
        words[COMMITTED] = words[SEALS] = pack_number(0)
        for index in range(NUM_SLOTS):
            words[slot_word(index) + STATE] = EMPTY if index < NUM_RESIDENT else HOLE
            words[slot_word(index) + RELEASED] = pack_number(0)

    @classmethod
    def read(cls, segment: Segment) -> tuple[Shape, bytes]:
        """The shape and the layout.

        Raises:
            CorruptError: the header or the layout is damaged; names the file.
        """
        if segment.nbytes < PAGE_BYTES:
            raise damaged(segment.path, f"it has only {segment.nbytes} bytes")
        words = segment.words
        if words[_CHECKSUM] != _shape_checksum(words):
            raise damaged(segment.path, "its header does not match its checksum")
        rank, run_id, slot_bytes, extra_bytes, layout_bytes, layout_digest, num_slots = (
            words[index] for index in _SHAPE
        )
        name = run_id.to_bytes(WORD_BYTES, "little").decode("ascii", "replace")
        shape = cls(rank, name, slot_bytes, extra_bytes, layout_bytes, layout_digest)
        if num_slots != NUM_SLOTS or shape.nbytes != segment.nbytes:
            raise damaged(
                segment.path, f"it is too small for {num_slots} slots of {slot_bytes} bytes"
            )
        layout = bytes(segment.buffer[PAGE_BYTES : PAGE_BYTES + layout_bytes])
        if xxhash.xxh3_64_intdigest(layout) != layout_digest:
            raise damaged(segment.path, "its layout does not match its digest")
        return shape, layout


def damaged(path: Path, what: str) -> CorruptError:
    """The error for an arena file that must not be used."""
    return CorruptError(f"arena {path} is damaged: {what}", remedy=REMEDY)


def slot_word(index: int) -> int:
    """Index of a slot header's first word."""
    return _SLOTS + index * 2 * _LINE


def slot_checksum(words: memoryview, index: int, layout_digest: int) -> int:
    """Checksum of a slot's words by the worker, except the state.

    It is valid for this slot and layout only.
    """
    first = slot_word(index) + STEP
    covered = (words[at] for at in range(first, first + CHECKSUM - STEP))
    return xxhash.xxh3_64_intdigest(struct.pack("=8Q", index, layout_digest, *covered))


def pack_number(value: int) -> int:
    """``value`` and its checksum in one word, so that one store changes both.

    A CRC-32 of 32 bits is a bijection: no damage that is confined to either half goes unnoticed.
    The seed makes words of all zeros and all ones damaged too.
    """
    if not 0 <= value <= _MAX_NUMBER:
        raise OverflowError(f"{value} does not fit into {_HALF} bits")
    return value | zlib.crc32(value.to_bytes(4, "little"), _SEED) << _HALF


def unpack_number(word: int) -> int | None:
    """The number stored in a word, None if it is damaged."""
    value = word & _MAX_NUMBER
    return value if pack_number(value) == word else None


def chunk_digests(data: npt.NDArray[np.uint8]) -> Iterator[int]:
    """xxh3-64 of each piece of ``CHUNK_BYTES``; other threads run meanwhile."""
    view = data.data
    for start in range(0, data.nbytes, CHUNK_BYTES):
        yield xxhash.xxh3_64_intdigest(view[start : start + CHUNK_BYTES])


def content_digest(chunks: Iterable[int], extra: bytes) -> int:
    """Digest of a slot's content: of its chunks' digests in order, and of its extra state."""
    joined = b"".join(chunk.to_bytes(WORD_BYTES, "little") for chunk in chunks)
    return xxhash.xxh3_64_intdigest(joined + extra)


def _shape_checksum(words: memoryview) -> int:
    version_and_length = (words[1], words[2])
    covered = (words[index] for index in _SHAPE)
    return xxhash.xxh3_64_intdigest(struct.pack("=9Q", *version_and_length, *covered))
