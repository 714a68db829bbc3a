"""How are tokens stored? Megatron's ``.bin``/``.idx`` pair, read and written byte for byte.

``.bin`` holds token ids back to back. ``.idx`` (little endian): 9 bytes magic, u64 version = 1, u8 dtype
code, u64 S sequences, u64 D entries of the document array, i32[S] tokens per sequence, i64[S] byte offset of
each sequence in ``.bin``, i64[D] sequence at which each document starts, plus the end (Megatron-LM
``megatron/core/datasets/indexed_dataset.py``).
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError, InputError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
_HEAD = struct.Struct("<9sQBQQ")
_DTYPES: dict[int, type[np.generic]] = {
    1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32,
    5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16,
}  # fmt: skip
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
_LARGEST_U16_VOCABULARY = 65_500  # Megatron's own limit for u16
_AGAIN = "prepare the data again with --force, or restore the file"


def token_dtype(vocab_size: int) -> npt.DTypeLike:
    """The dtype Megatron's writers pick: u16 below a vocabulary of 65,500, else i32."""
    return np.uint16 if vocab_size < _LARGEST_U16_VOCABULARY else np.int32


def bin_path(prefix: Path) -> Path:
    """``prefix`` + ``.bin``; a dot inside the prefix's name is kept."""
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    """``prefix`` + ``.idx``."""
    return prefix.with_name(prefix.name + ".idx")


class TokenFile:
    """One ``.bin``/``.idx`` pair, mapped read-only and checked when opened.

    ``lengths`` i32[S] tokens per sequence; ``starts`` i64[S] first token of each sequence in ``tokens``;
    ``documents`` i64[D]; ``tokens`` the whole ``.bin`` flat.
    """

    def __init__(self, prefix: Path) -> None:
        """Map ``prefix.bin`` and ``prefix.idx``.

        Raises:
            InputError: one of the files is missing or unreadable.
            CorruptError: wrong magic, version or dtype, a truncated file, or an index that contradicts
                itself.
        """
        self.prefix = prefix
        raw = _read(idx_path(prefix))
        self.dtype, num_sequences, num_documents = _parse_head(idx_path(prefix), raw)
        at = _HEAD.size
        self.lengths = np.frombuffer(raw, "<i4", num_sequences, at)
        offsets = np.frombuffer(raw, "<i8", num_sequences, at + 4 * num_sequences)
        self.documents = np.frombuffer(raw, "<i8", num_documents, at + 12 * num_sequences)
        self._check_index(offsets)
        self.starts = offsets // self.dtype.itemsize
        self.tokens = self._map(offsets)

    def _check_index(self, offsets: npt.NDArray[np.int64]) -> None:
        path, docs = idx_path(self.prefix), self.documents
        if self.lengths.size and int(self.lengths.min()) < 0:
            raise CorruptError(
                f"{path}: sequence {int(self.lengths.argmin())} has a negative length",
                remedy=_AGAIN,
            )
        if offsets.size and (int(offsets.min()) < 0 or np.any(offsets % self.dtype.itemsize)):
            raise CorruptError(
                f"{path}: a sequence offset is negative or not a multiple of the token size",
                remedy=_AGAIN,
            )
        if docs.size and (
            docs[0] != 0 or docs[-1] != self.lengths.size or np.any(np.diff(docs) < 0)
        ):
            raise CorruptError(
                f"{path}: the document array does not run from 0 to {self.lengths.size}",
                remedy=_AGAIN,
            )

    def _map(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        path = bin_path(self.prefix)
        ends = offsets + self.lengths.astype(np.int64) * self.dtype.itemsize
        wanted = int(ends.max()) if ends.size else 0
        size = _size(path)
        if size < wanted:
            sequence = int(np.argmax(ends > size))
            raise CorruptError(
                f"{path} is truncated: {size} bytes, its index needs {wanted} (sequence {sequence} is cut)",
                remedy=_AGAIN,
            )
        if size == 0:
            return np.empty(0, self.dtype)
        return np.memmap(path, self.dtype, "r", shape=(size // self.dtype.itemsize,))

    @property
    def num_sequences(self) -> int:
        """S."""
        return int(self.lengths.size)

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return int(self.lengths.sum(dtype=np.int64))

    def sequence(self, index: int) -> npt.NDArray[Any]:
        """Token ids of one sequence, a read-only view in the file's dtype."""
        start = int(self.starts[index])
        return self.tokens[start : start + int(self.lengths[index])]

    def fingerprint(self) -> str:
        """16 hex characters over the index and the size of ``.bin``: cheap, and another corpus has
        another.
        """
        digest = hashlib.sha256(_read(idx_path(self.prefix)))
        digest.update(str(_size(bin_path(self.prefix))).encode())
        return digest.hexdigest()[:16]


class TokenFileWriter:
    """Writes a pair, one document (= one sequence) per ``add``; the index appears with ``finish``."""

    def __init__(self, prefix: Path, dtype: npt.DTypeLike) -> None:
        self._prefix = prefix
        self._dtype = np.dtype(dtype)
        self._code = _CODES[self._dtype]
        self._lengths: list[int] = []
        self._file: BinaryIO = bin_path(prefix).open("wb")

    def add(self, tokens: npt.ArrayLike) -> None:
        """Append one document. Raises ValueError for an id that does not fit the dtype."""
        wide = np.asarray(tokens, dtype=np.int64)
        narrow = wide.astype(self._dtype)
        if not np.array_equal(narrow, wide):
            raise ValueError(
                f"a token id of document {len(self._lengths)} does not fit in {self._dtype}"
            )
        self._file.write(narrow.astype(self._dtype.newbyteorder("<")).tobytes())
        self._lengths.append(int(wide.size))

    def finish(self) -> None:
        """Write the index and force both files to disk."""
        _sync(self._file)
        lengths = np.asarray(self._lengths, dtype="<i4")
        offsets = np.zeros(lengths.size, dtype="<i8")
        np.cumsum(lengths[:-1].astype(np.int64) * self._dtype.itemsize, out=offsets[1:])
        with idx_path(self._prefix).open("wb") as file:
            file.write(_HEAD.pack(MAGIC, VERSION, self._code, lengths.size, lengths.size + 1))
            file.write(lengths.tobytes() + offsets.tobytes())
            file.write(np.arange(lengths.size + 1, dtype="<i8").tobytes())
            _sync(file)

    def __enter__(self) -> TokenFileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        self._file.close()


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _parse_head(path: Path, raw: bytes) -> tuple[np.dtype[Any], int, int]:
    if raw[:9] != MAGIC[: len(raw[:9])] or not raw:
        raise CorruptError(
            f"{path} is no Megatron index: it starts with {raw[:9]!r}",
            remedy="give the prefix of a .bin/.idx pair",
        )
    if len(raw) < _HEAD.size:
        raise CorruptError(
            f"{path} is truncated: {len(raw)} bytes, a header has {_HEAD.size}", remedy=_AGAIN
        )
    _, version, code, num_sequences, num_documents = _HEAD.unpack_from(raw)
    if version != VERSION:
        raise CorruptError(
            f"{path} has index version {version}, {VERSION} is read",
            remedy="write it with a current Megatron-LM",
        )
    if code not in _DTYPES or np.dtype(_DTYPES[code]).kind == "f":
        raise CorruptError(
            f"{path} has token dtype code {code}", remedy="use one of 1 to 5 or 8 (integers)"
        )
    wanted = _HEAD.size + 12 * num_sequences + 8 * num_documents
    if len(raw) < wanted:
        raise CorruptError(
            f"{path} is truncated: {len(raw)} bytes, {num_sequences} sequences need {wanted}",
            remedy=_AGAIN,
        )
    return np.dtype(_DTYPES[code]), num_sequences, num_documents


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _missing(path, error) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _missing(path, error) from error


def _missing(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot read {path}: {error.strerror}",
        remedy="run `headway data prepare`, or give the right path",
    )
