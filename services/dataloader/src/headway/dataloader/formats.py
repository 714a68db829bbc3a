"""Stores tokens as Megatron's ``.bin``/``.idx`` pair, byte for byte, plus a file of digests.

``.bin`` holds token ids back to back, ``.idx`` says where sequences begin (``index``), ``.digests``
has a digest per block of ``.bin`` (``digests``). Other programs read the pair and ignore the third.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError
from headway.dataloader.blocks import BlockReader, Digests
from headway.dataloader.digests import (
    BlockHasher,
    compute_digests,
    digests_path,
    keep_digests,
    read_digests,
    write_digests,
)
from headway.dataloader.index import AGAIN, DTYPES, HEAD, MAGIC, VERSION, Index, bin_path, idx_path

__all__ = ["TokenFile", "TokenFileWriter", "bin_path", "idx_path", "token_dtype"]

_CODES = {np.dtype(dtype): code for code, dtype in DTYPES.items()}
_LARGEST_U16_VOCABULARY = 65_500  # Megatron's own limit for u16


def token_dtype(vocab_size: int) -> npt.DTypeLike:
    """The dtype that Megatron's writers choose: u16 below a vocabulary of 65,500, else i32."""
    return np.uint16 if vocab_size < _LARGEST_U16_VOCABULARY else np.int32


class TokenFile:
    """One ``.bin``/``.idx`` pair, opened read-only and checked.

    ``dtype`` of the ids; ``lengths`` i32[S] tokens per sequence; ``offsets`` i64[S] first byte of
    each sequence; ``documents`` i64[D]. Used by one thread at a time.
    """

    def __init__(self, prefix: Path, bin_sha256: str = "") -> None:
        """Read the index, open ``.bin``, and read the digests if they exist.

        ``bin_sha256``, if known, is compared when ``.bin`` must be read to compute digests.

        Raises:
            InputError: one of the two files is missing or not readable by this user.
            ReadError: the disk or the network failed.
            CorruptError: wrong magic, version or dtype, a truncated file, an inconsistent index, or
                digests that contradict the pair.
        """
        self.prefix = prefix
        self._bin_sha256 = bin_sha256
        self._facts = _facts(prefix)
        self._index = Index(idx_path(prefix))
        self.dtype, self.lengths = self._index.dtype, self._index.lengths
        self.offsets, self.documents = self._index.offsets, self._index.documents
        self._reader = BlockReader(bin_path(prefix))
        self._check_size()
        self._digests = read_digests(prefix, self._reader.num_bytes)
        self.has_digests = self._digests is not None
        if self._digests is not None:
            self._reader.check_with(self._digests)
        self._fingerprint = ""

    def _check_size(self) -> None:
        size = self._reader.num_bytes
        wanted, sequence = self._index.past(size)
        if size < wanted:
            raise CorruptError(
                f"{self._reader.path} is truncated: {size} bytes, its index needs {wanted} "
                f"(sequence {sequence} is cut)",
                remedy=AGAIN,
            )

    @property
    def num_sequences(self) -> int:
        """S."""
        return int(self.lengths.size)

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return self._index.num_tokens

    def is_current(self) -> bool:
        """Whether the files are still the opened ones and no error was found in them."""
        return bool(self._facts) and self._facts == _facts(self.prefix)

    def retire(self) -> None:
        """Record an error, so that the next user of the pair reopens it."""
        self._facts = ()

    def read(self, start: int, out: memoryview) -> None:
        """Fill ``out`` with bytes of ``.bin`` from ``start``; raises as ``BlockReader.read``."""
        self._reader.read(start, out)

    def sequence(self, index: int) -> npt.NDArray[Any]:
        """Token ids of one sequence in the file's dtype, a new array."""
        found = np.empty(int(self.lengths[index]), self.dtype)
        if found.size:
            self.read(int(self.offsets[index]), found.data.cast("B"))
        return found

    def digests(self) -> Digests:
        """Digests of all blocks of ``.bin``, which is read completely if there is no digest file.

        The file is then written, if possible, for the next reader.
        """
        if self._digests is None:
            self._digests, found = compute_digests(bin_path(self.prefix))
            if self._bin_sha256 and found != self._bin_sha256:
                self._digests = None
                raise CorruptError(
                    f"{bin_path(self.prefix)} is not what meta.json describes: its SHA-256 is "
                    f"{found}, "
                    f"it was {self._bin_sha256}",
                    remedy="restore the file, or prepare the data again with --force",
                )
            self._reader.check_with(self._digests)
            self._keep(self._digests)
        return self._digests

    def _keep(self, digests: Digests) -> None:
        # _facts are from before the pair was opened; later changes may not have been read
        if self.is_current() and keep_digests(self.prefix, self._reader.num_bytes, digests):
            self._facts = (*self._facts[:2], _facts(self.prefix)[2])

    def fingerprint(self) -> str:
        """16 hex characters over the content of the pair, equal on every machine.

        Cheap with a digest file; without one, the first call reads all of ``.bin``.
        """
        if not self._fingerprint:
            found = hashlib.sha256(self._index.raw)
            found.update(str(self._reader.num_bytes).encode())
            found.update(self.digests().astype("<u8").tobytes())
            self._fingerprint = found.hexdigest()[:16]
        return self._fingerprint


def _facts(prefix: Path) -> tuple[tuple[int, ...] | None, ...]:
    """Identifies a version of the three files without reading them."""
    found: list[tuple[int, ...] | None] = []
    for path in (idx_path(prefix), bin_path(prefix), digests_path(prefix)):
        try:
            facts = path.stat()
            found.append((facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


class TokenFileWriter:
    """Writes a pair, one document (= one sequence) per ``add``; the index appears with ``finish``.

    A long document may come in parts: ``extend`` for all but the last one.

    An existing index and digests are removed at once, as they do not match the new content.
    """

    def __init__(self, prefix: Path, dtype: npt.DTypeLike) -> None:
        self._prefix = prefix
        self._dtype = np.dtype(dtype)
        self._code = _CODES[self._dtype]
        self._lengths = array("i")
        self._begun = 0  # tokens of the document that is not complete
        self._hasher = BlockHasher()
        for old in (idx_path(prefix), digests_path(prefix)):
            old.unlink(missing_ok=True)
        self._file: BinaryIO = bin_path(prefix).open("wb")

    def add(self, tokens: npt.ArrayLike) -> None:
        """Append one document, or its last part; raises as ``extend``."""
        self.extend(tokens)
        self._lengths.append(self._begun)
        self._begun = 0

    def extend(self, tokens: npt.ArrayLike) -> None:
        """Append a part of a document. Raises ValueError for an id that does not fit the dtype."""
        wide = np.asarray(tokens, dtype=np.int64)
        narrow = wide.astype(self._dtype)
        if not np.array_equal(narrow, wide):
            raise ValueError(
                f"a token id of document {len(self._lengths)} does not fit in {self._dtype}"
            )
        raw = narrow.astype(self._dtype.newbyteorder("<")).tobytes()
        self._file.write(raw)
        self._hasher.update(raw)
        self._begun += int(wide.size)

    def finish(self) -> None:
        """Write the digests and the index, and sync all three files to disk."""
        _sync(self._file)
        lengths = np.asarray(self._lengths, dtype="<i4")
        offsets = np.zeros(lengths.size, dtype="<i8")
        np.cumsum(lengths[:-1].astype(np.int64) * self._dtype.itemsize, out=offsets[1:])
        num_bytes = int(lengths.sum(dtype=np.int64)) * self._dtype.itemsize
        write_digests(self._prefix, num_bytes, self._hasher.finish())
        with idx_path(self._prefix).open("wb") as file:
            file.write(HEAD.pack(MAGIC, VERSION, self._code, lengths.size, lengths.size + 1))
            file.write(lengths.tobytes() + offsets.tobytes())
            file.write(np.arange(lengths.size + 1, dtype="<i8").tobytes())
            _sync(file)

    def __enter__(self) -> TokenFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        self._file.close()


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
