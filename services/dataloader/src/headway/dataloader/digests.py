"""Digests of a ``.bin``: xxh3-64 of every 128 KiB, from a side file or computed once.

``PREFIX.digests`` (little endian): 8 bytes magic, u32 version = 1, u32 bytes per block, u64 bytes
of the ``.bin``, u64 xxh3-64 of what follows: u64 for each block, the last of which may be shorter.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import struct
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from headway.common.errors import CorruptError
from headway.dataloader.blocks import BLOCK_BYTES, BlockReader, Digests, read_whole

MAGIC = b"HWDIGEST"
VERSION = 1
_HEAD = struct.Struct("<8sIIQQ")
_LARGE_BYTES = 1 << 28
_REMEDY = "run `headway data digest` on it, or prepare the data again with --force"

_log = logging.getLogger(__name__)
_computed: dict[tuple[str, int, int, int, int], tuple[Digests, str]] = {}
"""Digests of files without a side file, by path, size, modification time, inode and device."""
_not_kept: set[Path] = set()
"""Side files that could not be written, which is logged once."""


def digests_path(prefix: Path) -> Path:
    """``prefix`` + ``.digests``."""
    return prefix.with_name(prefix.name + ".digests")


class BlockHasher:
    """Digests of the blocks of a byte stream."""

    def __init__(self) -> None:
        self._found: list[int] = []
        self._hash = xxhash.xxh3_64()
        self._room = BLOCK_BYTES

    def update(self, data: Any) -> None:
        """Take the next bytes of the stream, however many."""
        rest = memoryview(data).cast("B")
        while len(rest):
            piece, rest = rest[: self._room], rest[self._room :]
            self._hash.update(piece)
            self._room -= len(piece)
            if not self._room:
                self._end_block()

    def finish(self) -> Digests:
        """Return the digests of all blocks, the last one included."""
        if self._room < BLOCK_BYTES:
            self._end_block()
        return np.array(self._found, dtype="<u8")

    def _end_block(self) -> None:
        self._found.append(self._hash.intdigest())
        self._hash, self._room = xxhash.xxh3_64(), BLOCK_BYTES


def write_digests(prefix: Path, num_bytes: int, digests: Digests) -> Path:
    """Write the side file and sync it to disk; an existing one is replaced atomically."""
    body = digests.astype("<u8").tobytes()
    head = _HEAD.pack(MAGIC, VERSION, BLOCK_BYTES, num_bytes, xxhash.xxh3_64_intdigest(body))
    path = digests_path(prefix)
    # machines that share the folder may have processes of one number
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as file:
            file.write(head + body)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def keep_digests(prefix: Path, num_bytes: int, digests: Digests) -> bool:
    """Try ``write_digests`` for later readers; returns whether it worked, never raises."""
    path = digests_path(prefix)
    try:
        write_digests(prefix, num_bytes, digests)
    except OSError as error:
        if path not in _not_kept:
            _not_kept.add(path)
            reason = error.strerror or error
            _log.warning(
                "%s cannot be written (%s): every process must read the whole .bin", path, reason
            )
        return False
    _log.info("%s was written: the pair need not be read completely again", path)
    return True


def read_digests(prefix: Path, num_bytes: int) -> Digests | None:
    """The digests in the side file of a ``.bin`` of ``num_bytes``; None if there is no side file.

    Raises:
        CorruptError: it is truncated, damaged, or of another version or ``.bin``.
        ReadError: the disk or the network failed.
    """
    path = digests_path(prefix)
    if not path.exists():
        return None
    raw = read_whole(path)
    if len(raw) < _HEAD.size or raw[:8] != MAGIC:
        raise CorruptError(f"{path} holds no block digests: {raw[:8]!r}", remedy=_REMEDY)
    _, version, block_bytes, size, check = _HEAD.unpack_from(raw)
    if (version, block_bytes) != (VERSION, BLOCK_BYTES):
        raise CorruptError(
            f"{path} has version {version} with blocks of {block_bytes} bytes, "
            f"{VERSION} with {BLOCK_BYTES} is read",
            remedy=_REMEDY,
        )
    if size != num_bytes:
        raise CorruptError(
            f"{path} is of a .bin of {size} bytes, but the .bin has {num_bytes}",
            remedy="restore the .bin; if it was rewritten on purpose, run `headway data digest`",
        )
    body = raw[_HEAD.size :]
    if len(body) != 8 * -(-size // BLOCK_BYTES) or xxhash.xxh3_64_intdigest(body) != check:
        raise CorruptError(f"{path} is truncated or damaged", remedy=_REMEDY)
    return np.frombuffer(body, "<u8")


def compute_digests(path: Path) -> tuple[Digests, str]:
    """Read all of ``path``; the digests of its blocks and its SHA-256. A second call is free.

    Raises:
        InputError: no such file. ReadError: the disk or the network failed.
    """
    reader = BlockReader(path)
    key = (str(path), *reader.identity())
    found = _computed.get(key)
    if found is None:
        if reader.num_bytes >= _LARGE_BYTES:
            _log.warning("reading %.1f GB of %s to compute digests", reader.num_bytes / 1e9, path)
        found = _computed[key] = digest_all(reader)
    reader.close()
    return found


def digest_all(reader: BlockReader) -> tuple[Digests, str]:
    """The digests of the blocks of a file and its SHA-256, in one pass."""
    hasher, whole = BlockHasher(), hashlib.sha256()
    for piece in reader.pieces():
        hasher.update(piece)
        whole.update(piece)
    return hasher.finish(), whole.hexdigest()
