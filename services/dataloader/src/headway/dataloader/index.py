"""The ``.idx`` of a pair, read once and checked: where each sequence of ``.bin`` begins and ends.

``.idx`` (little endian): 9 bytes magic, u64 version = 1, u8 dtype code, u64 S
sequences, u64 D entries of the document array, i32[S] tokens per sequence, i64[S] byte
offset of each sequence in ``.bin``, i64[D] sequence at which each document starts, plus
the end (Megatron-LM ``megatron/core/datasets/indexed_dataset.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError
from headway.dataloader.blocks import read_whole

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEAD = struct.Struct("<9sQBQQ")
DTYPES: dict[int, type[np.generic]] = {
    1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32,
    5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16,
}  # fmt: skip
AGAIN = "prepare the data again with --force, or restore the file"
_AT_ONCE = 1 << 20
_LARGEST_OFFSET = 1 << 62  # so that the end of a sequence is an int64 too


def bin_path(prefix: Path) -> Path:
    """``prefix`` + ``.bin``; a dot inside the prefix's name is kept."""
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    """``prefix`` + ``.idx``."""
    return prefix.with_name(prefix.name + ".idx")


class Index:
    """The arrays of one ``.idx``, views of ``raw``, its bytes.

    ``lengths`` i32[S] tokens per sequence; ``offsets`` i64[S] first byte of each sequence;
    ``documents`` i64[D].
    """

    def __init__(self, path: Path) -> None:
        """Read ``path``.

        Raises:
            InputError: it is missing. ReadError: the disk or the network failed.
            CorruptError: wrong magic, version or dtype, a truncated file, or an inconsistent index.
        """
        self.path = path
        self.raw = read_whole(path)
        self.dtype, num_sequences, num_documents = _parse_head(path, self.raw)
        at = HEAD.size
        self.lengths = np.frombuffer(self.raw, "<i4", num_sequences, at)
        self.offsets = np.frombuffer(self.raw, "<i8", num_sequences, at + 4 * num_sequences)
        self.documents = np.frombuffer(self.raw, "<i8", num_documents, at + 12 * num_sequences)
        self._check()
        self.num_tokens = int(self.lengths.sum(dtype=np.int64))

    def past(self, num_bytes: int) -> tuple[int, int]:
        """Return the end of the last sequence, and the first one that ends after ``num_bytes``.

        The end is in bytes. The sequence's number is -1 if none ends after ``num_bytes``.
        """
        last, first = 0, -1
        for at in range(0, self.lengths.size, _AT_ONCE):
            lengths = self.lengths[at : at + _AT_ONCE].astype(np.int64)
            ends = self.offsets[at : at + _AT_ONCE] + lengths * self.dtype.itemsize
            last = max(last, int(ends.max()))
            if first < 0 and last > num_bytes:
                first = at + int(np.argmax(ends > num_bytes))
        return last, first

    def _check(self) -> None:
        offsets, docs, size = self.offsets, self.documents, self.dtype.itemsize
        if self.lengths.size and int(self.lengths.min()) < 0:
            raise self._damage(f"sequence {int(self.lengths.argmin())} has a negative length")
        if offsets.size and (
            int(offsets.min()) < 0 or any(np.any(part % size) for part in _parts(offsets))
        ):
            raise self._damage("a sequence offset is negative or not a multiple of the token size")
        if offsets.size and int(offsets.max()) > _LARGEST_OFFSET:
            raise self._damage(f"sequence {int(offsets.argmax())} has an offset of 2^62 or more")
        if docs.size and (docs[0] != 0 or docs[-1] != self.lengths.size or _falls(docs)):
            raise self._damage(f"the document array does not run from 0 to {self.lengths.size}")

    def _damage(self, what: str) -> CorruptError:
        return CorruptError(f"{self.path}: {what}", remedy=AGAIN)


def _parts(array: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Pieces that overlap by one: checks of a large index need no memory of its size."""
    for at in range(0, array.size, _AT_ONCE):
        yield array[at : at + _AT_ONCE + 1]


def _falls(array: npt.NDArray[np.int64]) -> bool:
    return any(np.any(part[1:] < part[:-1]) for part in _parts(array))


def _parse_head(path: Path, raw: bytes) -> tuple[np.dtype[Any], int, int]:
    if raw[:9] != MAGIC[: len(raw[:9])] or not raw:
        raise CorruptError(
            f"{path} is not a Megatron index: it starts with {raw[:9]!r}",
            remedy="give the prefix of a .bin/.idx pair",
        )
    if len(raw) < HEAD.size:
        raise CorruptError(
            f"{path} is truncated: {len(raw)} bytes, a header has {HEAD.size}", remedy=AGAIN
        )
    _, version, code, num_sequences, num_documents = HEAD.unpack_from(raw)
    if version != VERSION:
        raise CorruptError(
            f"{path} has index version {version}, {VERSION} is read",
            remedy="write it with a current Megatron-LM",
        )
    if code not in DTYPES or np.dtype(DTYPES[code]).kind == "f":
        raise CorruptError(
            f"{path} has token dtype code {code}", remedy="use one of 1 to 5 or 8 (integers)"
        )
    wanted = HEAD.size + 12 * num_sequences + 8 * num_documents
    if len(raw) < wanted:
        raise CorruptError(
            f"{path} is truncated: {len(raw)} bytes, {num_sequences} sequences need {wanted}",
            remedy=AGAIN,
        )
    return np.dtype(DTYPES[code]), num_sequences, num_documents
