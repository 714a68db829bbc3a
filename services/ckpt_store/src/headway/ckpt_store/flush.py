"""Writes a snapshot from memory to a folder: safetensors blob, digests, part file, then manifest.

The blob is the snapshot as it is in memory after a safetensors header, so one pass reads each
byte once, for its digest and the disk. Nothing counts before its rename, and nothing is
renamed before its fsync.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from headway.ckpt_store.dtypes import DTYPES
from headway.ckpt_store.files import PAGE_BYTES, Files
from headway.ckpt_store.manifest import (
    CHUNK_BYTES,
    MANIFEST_NAME,
    SCHEMA,
    Mesh,
    Part,
    blob_name,
    decode_part,
    digest,
    encode_manifest,
    encode_part,
    gave_up_name,
    part_name,
    step_dir_name,
)
from headway.ckpt_store.stream import TensorStream
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.common.node.arena_format import content_digest
from headway.common.node.failpoints import failpoint

SETTLE_CHUNKS = 32
"""Chunks (256 MiB) that may be in the page cache if the disk is not written directly."""


class StaleSnapshotError(HeadwayError):
    """The snapshot, or its target folder, was withdrawn during the flush; nothing of it is left."""


class DamagedSnapshotError(CorruptError):
    """The snapshot in memory differs from what its rank sealed; nothing of it is left on disk."""


@dataclass(frozen=True)
class Snapshot:
    """One rank's state at one step, in memory."""

    run_id: str
    step: int
    generation: int
    layout: Mapping[str, Any]
    data: npt.NDArray[np.uint8] | TensorStream
    extra: bytes = b""
    still_valid: Callable[[], bool] = field(default=lambda: True)
    """Called after the last byte was read: whether the data were unchanged."""
    incarnation: str = ""
    """See ``Part.incarnation``."""
    digest: int | None = None
    """Digest of data and extra state at sealing (``arena_format``), None if not computed."""
    where: str = "memory"
    """Description of the data's location for error messages."""

    @property
    def mesh(self) -> Mesh:
        """Raises InputError if the layout has no valid mesh."""
        try:
            return msgspec.convert(self.layout["mesh"], Mesh)
        except (KeyError, ValueError) as error:
            raise InputError(
                f"the layout of step {self.step} has no valid mesh: {error!r}",
                remedy='give it "mesh": {"tp", "pp", "dp", "vp", "rank"}',
            ) from error


def parse_layout(raw: bytes) -> dict[str, Any]:
    """The layout JSON of an arena. Raises CorruptError."""
    try:
        layout = json.loads(raw)
    except ValueError as error:
        raise CorruptError(
            f"the arena's layout is not JSON: {error}", remedy="remove the arena file"
        ) from error
    if not isinstance(layout, dict):
        raise CorruptError(
            "the arena's layout is not a JSON object", remedy="remove the arena file"
        )
    return layout


def blob_header(snapshot: Snapshot) -> memoryview:
    """The safetensors header of a snapshot: a whole number of pages, itself page aligned.

    Each tensor's name is ``<name>|<field>``; holes between tensors become ``__pad__.<i>``, because
    the format does not allow holes. A tensor keeps its (tensor-parallel local) shape if it is
    complete here, else it is flat.

    Raises:
        InputError: tensors overlap, extend past the data, or have a dtype that the format lacks.
    """
    metadata = {
        "format": "headway",
        "generation": str(snapshot.generation),
        "rank": str(snapshot.mesh.rank),
        "run_id": snapshot.run_id,
        "schema": str(SCHEMA),
        "step": str(snapshot.step),
    }
    entries: dict[str, Any] = {"__metadata__": metadata}
    end, pads = 0, 0
    tensors = snapshot.layout.get("tensors", ())
    for tensor in sorted(tensors, key=lambda t: (t["offset"], t["nbytes"])):
        start = int(tensor["offset"])
        if start > end:
            entries[f"__pad__.{pads}"] = _entry("U8", [start - end], end, start)
            pads += 1
        stop = start + int(tensor["nbytes"])
        if start < end or stop > snapshot.data.nbytes:
            raise InputError(
                f"tensor {tensor['name']!r} at [{start}, {stop}) overlaps another or extends "
                "past the data",
                remedy="lay out tensors without overlap",
            )
        dtype, shape = _dtype_and_shape(tensor)
        entries[_unique(tensor, entries)] = _entry(dtype, shape, start, stop)
        end = stop
    if end < snapshot.data.nbytes:
        entries[f"__pad__.{pads}"] = _entry(
            "U8", [snapshot.data.nbytes - end], end, snapshot.data.nbytes
        )
    text = json.dumps(entries, separators=(",", ":")).encode()
    length = -(-(8 + len(text)) // PAGE_BYTES) * PAGE_BYTES
    header = mmap.mmap(-1, length)  # anonymous and so page aligned, as O_DIRECT requires
    header[:] = (length - 8).to_bytes(8, "little") + text.ljust(length - 8)
    return memoryview(header)


def write_shard(
    files: Files,
    checkpoints: Path,
    snapshot: Snapshot,
    progress: Callable[[int], None] = lambda _: None,
) -> Part:
    """Make one rank's snapshot durable under ``checkpoints`` and return its part.

    Repeating it is harmless: existing equal files are kept. ``progress`` is called with the bytes
    of each piece written.

    Raises:
        StaleSnapshotError: the snapshot or its folder was withdrawn; nothing of it is left.
        DamagedSnapshotError: what was read does not match the snapshot's digest;
            nothing of it is left.
        HeadwayError: a complete step of this name with other content exists.
        OSError: from the disk (ENOSPC before any byte was written); no temporary file is left.
    """
    folder = checkpoints / step_dir_name(snapshot.step, snapshot.generation)
    files.make_dir(folder)
    if (old := _same_as_before(folder, snapshot)) is not None:
        files.sync_dir(folder)
        return old
    rank = snapshot.mesh.rank
    if (folder / gave_up_name(rank)).exists():
        files.discard(
            folder / gave_up_name(rank)
        )  # an earlier start of the job gave it up, not this one
    try:
        part = _write_blob(files, folder, snapshot, progress)
        draft = files.write_whole(folder / part_name(rank), encode_part(part))
        files.rename(draft, folder / part_name(rank))
        files.sync_dir(folder)
    except FileNotFoundError as error:
        raise StaleSnapshotError(
            f"{folder.name} was removed during the flush of rank {rank}"
        ) from error
    return part


def write_manifest(files: Files, folder: Path) -> bytes:
    """Commit ``folder``: write MANIFEST.json and return its bytes.

    It is idempotent, also with two daemons.

    Raises:
        CorruptError: a part or a blob is missing, truncated, or of another run. OSError: from the
            disk.
    """
    parts = _read_parts(folder)
    for part, _ in parts:
        blob = folder / blob_name(part.rank)
        if not blob.exists() or blob.stat().st_size != part.file_bytes:
            raise CorruptError(
                f"{blob} is not the {part.file_bytes} bytes in its part file",
                remedy="flush it again",
            )
    content = encode_manifest(parts)
    path = folder / MANIFEST_NAME
    # The names of blobs and parts first: a manifest must never outlive them.
    files.sync_dir(folder)
    files.sync_dir(folder.parent)
    if not path.exists() or path.read_bytes() != content:
        draft = files.write_whole(path, content)
        failpoint("store.mid_manifest", step=parts[0][0].step, generation=parts[0][0].generation)
        files.rename(draft, path)
        files.sync_dir(folder)
    return content


def _write_blob(
    files: Files, folder: Path, snapshot: Snapshot, progress: Callable[[int], None]
) -> Part:
    mesh, header = snapshot.mesh, blob_header(snapshot)
    path = folder / blob_name(mesh.rank)
    total = len(header) + snapshot.data.nbytes
    draft = files.temporary(path)
    file = files.create(draft, total)
    chunks: list[str] = []
    try:
        file.write(header)
        starts = range(0, snapshot.data.nbytes, CHUNK_BYTES)
        for number, start in enumerate(starts):
            if number == len(starts) // 2:
                failpoint(
                    "store.mid_flush",
                    step=snapshot.step,
                    rank=mesh.rank,
                    generation=snapshot.generation,
                )
            piece = snapshot.data[start : start + CHUNK_BYTES]
            chunks.append(digest(piece))
            file.write(piece)
            if number % SETTLE_CHUNKS == SETTLE_CHUNKS - 1:
                file.settle()
            progress(piece.nbytes)
        if not snapshot.still_valid():
            raise StaleSnapshotError(
                f"the snapshot of step {snapshot.step}, rank {mesh.rank} was overwritten"
            )
        _check_digest(snapshot, chunks)
        file.sync()
        file.close()
        if not snapshot.still_valid():  # an fsync may take long
            raise StaleSnapshotError(
                f"step {snapshot.step} of rank {mesh.rank} was completed by another process "
                "meanwhile"
            )
        if (folder / part_name(mesh.rank)).exists():
            # Other content under this name: its digests must never be combined with the new blob.
            files.remove(folder / part_name(mesh.rank))
            files.sync_dir(folder)
        files.rename(draft, path)
    except BaseException:
        file.close()
        files.discard(draft)
        raise
    return Part(
        run_id=snapshot.run_id,
        step=snapshot.step,
        generation=snapshot.generation,
        mesh=mesh,
        file_bytes=total,
        data_start=len(header),
        header_digest=digest(header),
        chunks=tuple(chunks),
        layout=snapshot.layout,
        extra=snapshot.extra,
        incarnation=snapshot.incarnation,
    )


def _check_digest(snapshot: Snapshot, chunks: list[str]) -> None:
    """Check that the digests of the written pieces are those behind the arena's digest."""
    if snapshot.digest is None:
        return
    if content_digest((int(chunk, 16) for chunk in chunks), snapshot.extra) != snapshot.digest:
        raise DamagedSnapshotError(
            f"the snapshot of step {snapshot.step}, rank {snapshot.mesh.rank} in {snapshot.where} "
            "does not match its digest and is not made durable",
            remedy="the next durable step tries again; check the memory of this node",
        )


def _same_as_before(folder: Path, snapshot: Snapshot) -> Part | None:
    """The existing part, if it is of exactly this snapshot (a daemon died after writing it).

    A complete step is kept also if another start of the job saves it again.
    """
    rank = snapshot.mesh.rank
    is_complete = (folder / MANIFEST_NAME).exists()
    try:
        part = decode_part((folder / part_name(rank)).read_bytes(), folder / part_name(rank))
        header = blob_header(snapshot)
        data = snapshot.data
        is_same = (
            part.mesh == snapshot.mesh
            and (part.run_id, part.step, part.generation)
            == (snapshot.run_id, snapshot.step, snapshot.generation)
            and (is_complete or part.incarnation == snapshot.incarnation)
            and part.extra == snapshot.extra
            and part.header_digest == digest(header)
            and part.file_bytes
            == len(header) + data.nbytes
            == (folder / blob_name(rank)).stat().st_size
            and list(part.chunks)
            == [digest(data[at : at + CHUNK_BYTES]) for at in range(0, data.nbytes, CHUNK_BYTES)]
        )
    except (FileNotFoundError, CorruptError):
        is_same = False
    if is_same:
        return part
    if is_complete:
        raise HeadwayError(
            f"{folder} is complete and holds another rank {rank} than the one to be saved",
            remedy="start a new generation, or choose another checkpoints folder",
        )
    return None


def _read_parts(folder: Path) -> list[tuple[Part, bytes]]:
    """Rank 0's part names the world size, which names the others."""
    parts: list[tuple[Part, bytes]] = []
    world_size, rank = 1, 0
    while rank < world_size:
        path = folder / part_name(rank)
        try:
            raw = path.read_bytes()
        except FileNotFoundError as error:
            raise CorruptError(
                f"{path} is missing", remedy="wait for its node, or use an older checkpoint"
            ) from error
        part = decode_part(raw, path)
        parts.append((part, raw))
        world_size, rank = parts[0][0].mesh.world_size, rank + 1
    return parts


def _dtype_and_shape(tensor: Mapping[str, Any]) -> tuple[str, list[int]]:
    name = str(tensor["dtype"]).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(
            f"tensor {tensor['name']!r} has dtype {name!r}", remedy=f"use one of {sorted(DTYPES)}"
        )
    dtype, itemsize = DTYPES[name]
    nbytes = int(tensor["nbytes"])
    if nbytes % itemsize:
        raise InputError(
            f"tensor {tensor['name']!r} has {nbytes} bytes of {name}", remedy="correct its nbytes"
        )
    shape = [int(n) for n in tensor.get("global_shape", ())]
    dim, parts = tensor.get("tp_dim"), int(tensor.get("tp_size", 1))
    if dim is not None and parts > 1 and shape[dim] % parts == 0:
        shape[dim] //= parts
    if "global_shape" not in tensor or math.prod(shape) * itemsize != nbytes:
        shape = [nbytes // itemsize]
    return dtype, shape


def _unique(tensor: Mapping[str, Any], taken: Mapping[str, Any]) -> str:
    name = f"{tensor['name']}|{tensor['field']}" if tensor.get("field") else str(tensor["name"])
    unique, count = name, 1
    while unique in taken:
        count += 1
        unique = f"{name}#{count}"
    return unique


def _entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
