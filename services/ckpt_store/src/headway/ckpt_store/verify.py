"""Verified reads: every byte is compared with the digest that was taken from memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.ckpt_store.folder import CheckpointInfo
from headway.ckpt_store.manifest import (
    CHUNK_BYTES,
    MANIFEST_NAME,
    Part,
    blob_name,
    decode_part,
    digest,
    encode_manifest,
    part_name,
)
from headway.ckpt_store.reading import attempt, corrupt, read_file
from headway.common.errors import CorruptError, InputError


@dataclass(frozen=True)
class Problem:
    """One problem of a checkpoint."""

    path: Path
    message: str


def read_part(info: CheckpointInfo, rank: int) -> Part:
    """The part file of ``rank``, checked against the manifest.

    Raises:
        InputError: the checkpoint has no such rank. CorruptError: missing, changed, or unreadable.
    """
    if not 0 <= rank < info.world_size:
        raise InputError(
            f"{info.path} has no rank {rank}, only 0..{info.world_size - 1}",
            remedy="restore on the grid that saved it",
        )
    path = info.path / part_name(rank)
    raw = read_file(path)
    if digest(raw) != info.manifest.files[rank].part_digest:
        raise corrupt(path, "its digest differs from the manifest")
    return decode_part(raw, path)


def read_shard_into(
    info: CheckpointInfo,
    rank: int,
    buffer: Any,
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> bytes:
    """Read the snapshot of ``rank`` straight into ``buffer`` and return the extra state.

    ``buffer`` is a writable contiguous bytes-like object or uint8 array of at least ``data_bytes``
    of the part; later bytes are not touched. On an error its content is undefined. ``progress`` is
    called with the bytes of each chunk that was read; what it raises ends the reading.

    Raises:
        CorruptError: a digest, length or format is wrong, or the disk cannot read it; names file
            and position. Use an older checkpoint (``newest(..., max_step=info.step - 1)``).
        InputError: ``buffer`` is too small, or there is no such rank.
    """
    part = read_part(info, rank)
    view = memoryview(buffer).cast("B")
    if len(view) < part.data_bytes:
        raise InputError(
            f"a buffer of {len(view)} bytes cannot hold the {part.data_bytes} of rank {rank}",
            remedy="restore with the model and grid that saved it",
        )
    blob = info.path / blob_name(rank)
    for nbytes in _read_chunks(blob, part, lambda start, stop: view[start:stop]):
        progress(nbytes)
    return part.extra


def read_shard(
    info: CheckpointInfo, rank: int, *, progress: Callable[[int], object] = lambda _: None
) -> tuple[npt.NDArray[np.uint8], bytes]:
    """Return the snapshot of ``rank`` in new memory, and its extra state.

    Raises:
        CorruptError, InputError: as ``read_shard_into``.
    """
    data = np.empty(read_part(info, rank).data_bytes, np.uint8)
    return data, read_shard_into(info, rank, data, progress=progress)


def read_chunk(path: Path, part: Part, number: int) -> bytearray:
    """Chunk ``number`` of a blob's data, checked against its digest.

    Raises:
        CorruptError: a digest or length is wrong, or the disk cannot read it.
    """
    _check_length(path, part)
    start, stop = _bounds(part, number)
    memory = bytearray(stop - start)
    fd = attempt(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)
    try:
        _fill_chunk(fd, part, number, memoryview(memory), path)
    finally:
        os.close(fd)
    return memory


def check_part(
    info: CheckpointInfo, rank: int, *, progress: Callable[[int], bool] = lambda _: True
) -> None:
    """Read every byte that ``rank`` wrote and compare digests, without keeping it.

    ``progress`` is called with the number of bytes of each chunk that is sound; False ends the
    reading.

    Raises:
        CorruptError: a digest, length or format is wrong, or the disk cannot read it.
    """
    part = read_part(info, rank)
    scratch = memoryview(bytearray(min(CHUNK_BYTES, part.data_bytes)))
    for nbytes in _read_chunks(info.path / blob_name(rank), part, _reuse(scratch)):
        if not progress(nbytes):
            break


def check_all_parts(info: CheckpointInfo) -> None:
    """Compare every rank's part file with the manifest and every blob's length with its part.

    Raises:
        CorruptError: naming the first wrong file. OSError: as ``reading.attempt``.
    """
    for rank in range(info.world_size):
        _check_length(info.path / blob_name(rank), read_part(info, rank))


def verify(
    info: CheckpointInfo, *, deep: bool = True, progress: Callable[[int], None] = lambda _: None
) -> list[Problem]:
    """All problems of a checkpoint, one entry per file; an empty list means that it is intact.

    ``deep`` reads every byte and compares digests; otherwise lengths only. ``progress`` is called
    with the bytes read.
    """
    problems, parts = [], []
    for rank in range(info.world_size):
        try:
            part = read_part(info, rank)
            parts.append((part, read_file(info.path / part_name(rank))))
            if deep:
                scratch = memoryview(bytearray(min(CHUNK_BYTES, part.data_bytes)))
                for nbytes in _read_chunks(info.path / blob_name(rank), part, _reuse(scratch)):
                    progress(nbytes)
            else:
                _check_length(info.path / blob_name(rank), part)
        except CorruptError as error:
            problems.append(Problem(info.path / blob_name(rank), error.message))
        except OSError as error:
            problems.append(Problem(info.path / blob_name(rank), str(error)))
    if not problems:
        problems += _problems_of_manifest(info.path / MANIFEST_NAME, parts)
    return problems


def _problems_of_manifest(path: Path, parts: list[tuple[Part, bytes]]) -> list[Problem]:
    try:
        if encode_manifest(parts) == read_file(path):
            return []
    except CorruptError as error:
        return [Problem(path, error.message)]
    return [Problem(path, f"{path}: it is not the manifest of its parts")]


def _read_chunks(path: Path, part: Part, target: Callable[[int, int], memoryview]) -> Iterator[int]:
    """Read and check the blob; yields the number of bytes of each chunk.

    ``target(start, stop)`` gives the memory for those bytes of the data.
    """
    _check_length(path, part)
    fd = attempt(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)
    try:
        header = bytearray(part.data_start)
        _fill(fd, memoryview(header), 0, path)
        if digest(header) != part.header_digest:
            raise corrupt(path, "the header does not match its digest")
        for number in range(len(part.chunks)):
            start, stop = _bounds(part, number)
            _fill_chunk(fd, part, number, target(start, stop), path)
            # Drop this file from the page cache, which the corpus needs.
            os.posix_fadvise(fd, 0, part.data_start + stop, os.POSIX_FADV_DONTNEED)
            yield stop - start
    finally:
        os.close(fd)


def _bounds(part: Part, number: int) -> tuple[int, int]:
    """Where a chunk is in the data."""
    start = number * CHUNK_BYTES
    return start, min(start + CHUNK_BYTES, part.data_bytes)


def _fill_chunk(fd: int, part: Part, number: int, memory: memoryview, path: Path) -> None:
    start, stop = _bounds(part, number)
    _fill(fd, memory, part.data_start + start, path)
    if digest(memory) != part.chunks[number]:
        at = f"bytes {part.data_start + start} to {part.data_start + stop}"
        raise corrupt(path, f"chunk {number} ({at}) does not match its digest")


def _reuse(scratch: memoryview) -> Callable[[int, int], memoryview]:
    return lambda start, stop: scratch[: stop - start]


def _fill(fd: int, memory: memoryview, offset: int, path: Path) -> None:
    while memory:
        done = attempt(partial(os.preadv, fd, [memory], offset), path, offset)
        if not done:
            raise corrupt(path, f"it ends at byte {offset}")
        memory, offset = memory[done:], offset + done


def _check_length(path: Path, part: Part) -> None:
    nbytes = attempt(path.stat, path).st_size
    if nbytes != part.file_bytes:
        raise corrupt(path, f"it has {nbytes} bytes of {part.file_bytes}")
