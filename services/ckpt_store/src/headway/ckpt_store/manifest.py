"""The format of one durable step on disk: names, part files, the manifest.

    <checkpoints>/step-00000050.g2/
        rank-0.safetensors  the rank's snapshot; 4 KiB aligned data, readable by ``safetensors``
        rank-0.json         the part: mesh, digests (xxh3-64 per 8 MiB), extra state (base64)
        MANIFEST.json       written last, when every part exists; required for the folder to count
        rank-0.gave-up      rank 0's node could not write its part; text: the part's incarnation
        rank-0.damaged      the error of rank 0 reading its shard: no rank restores this step
    <checkpoints>/generation-00002.json
                            the step from which generation 2 continued (see ``mark_bytes``)

All three JSON forms have deterministic bytes (sorted keys, no times, no host names), so two daemons
that write the same file write the same bytes, and digest files can be digested.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import xxhash
from headway.common.errors import CorruptError
from headway.common.node import arena_format

SCHEMA = 1
CHUNK_BYTES = arena_format.CHUNK_BYTES
MANIFEST_NAME = "MANIFEST.json"
KEEP_NAME = "KEEP"
"""An empty file of this name pins a step: retention keeps it."""
DIGEST = "xxh3-64"

Count = Annotated[int, msgspec.Meta(ge=0)]
T = TypeVar("T")

_STEP_DIR = re.compile(r"step-(\d{8,})\.g(\d+)")
_PART = re.compile(r"rank-(\d+)\.json")
_GAVE_UP = re.compile(r"rank-\d+\.gave-up")
_DAMAGED = re.compile(r"rank-\d+\.damaged")
_MARK = re.compile(r"generation-(\d{5,})\.json")


class Mesh(msgspec.Struct, frozen=True):
    """Degrees of parallelism of the run that saved, and this rank's place in it."""

    rank: Count
    tp: Count = 1
    pp: Count = 1
    dp: Count = 1
    vp: Count = 1

    def __post_init__(self) -> None:
        if self.rank >= self.world_size:
            raise ValueError(f"rank {self.rank} of {self.world_size}")

    @property
    def world_size(self) -> int:
        """Ranks that make a step complete; ``vp`` chunks share a rank and do not count."""
        return self.tp * self.pp * self.dp


class Part(msgspec.Struct, frozen=True):
    """What one rank contributed: everything needed to read and verify its blob."""

    run_id: str
    step: Count
    generation: Count
    mesh: Mesh
    file_bytes: Count
    data_start: Count
    """Bytes before the data in the blob (header and its padding), a multiple of 4096."""
    header_digest: str
    """Digest of the header."""
    chunks: tuple[str, ...]
    """Digest of each 8 MiB of data, 16 hex digits; the last chunk may be shorter."""
    layout: Mapping[str, Any]
    extra: bytes
    incarnation: str = ""
    """Which start of the job wrote it, if generations are ambiguous (see ``incarnation.py``)."""

    def __post_init__(self) -> None:
        if self.data_bytes < 0 or len(self.chunks) != num_chunks(self.data_bytes):
            raise ValueError(f"{len(self.chunks)} chunk digests for {self.data_bytes} bytes")

    @property
    def rank(self) -> int:
        return self.mesh.rank

    @property
    def data_bytes(self) -> int:
        return self.file_bytes - self.data_start


class RankFile(msgspec.Struct, frozen=True):
    """The files of one rank: length of the blob, digest of the part file."""

    rank: Count
    bytes: Count
    part_digest: str


class Manifest(msgspec.Struct, frozen=True):
    """A complete step: which ranks, how many bytes, and the digest of each part file."""

    run_id: str
    step: Count
    generation: Count
    world_size: Count
    files: tuple[RankFile, ...]

    def __post_init__(self) -> None:
        if [file.rank for file in self.files] != list(range(self.world_size)) or not self.files:
            raise ValueError(f"it names {len(self.files)} files for {self.world_size} ranks")


class _PartForm(msgspec.Struct):
    """How a part file keeps its digests."""

    chunk_bytes: int
    digest: str
    extra_digest: str


class _Schema(msgspec.Struct):
    schema: Any = None


class _Mark(msgspec.Struct):
    restart_step: Annotated[int, msgspec.Meta(ge=-1)]


def digest(data: Any) -> str:
    """xxh3-64 of a bytes-like object, 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(data)


def step_dir_name(step: int, generation: int) -> str:
    """Folder of an attempt. Sorts by step in a listing up to step 99,999,999.

    >>> step_dir_name(50, 2)
    'step-00000050.g2'
    """
    return f"step-{step:08d}.g{generation}"


def parse_step_dir(name: str) -> tuple[int, int] | None:
    """(step, generation) of a folder name; None for anything else in the checkpoints folder."""
    match = _STEP_DIR.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def blob_name(rank: int) -> str:
    return f"rank-{rank}.safetensors"


def part_name(rank: int) -> str:
    return f"rank-{rank}.json"


def parse_part_name(name: str) -> int | None:
    """Rank of a part file's name, None for other files."""
    match = _PART.fullmatch(name)
    return int(match[1]) if match else None


def gave_up_name(rank: int) -> str:
    return f"rank-{rank}.gave-up"


def is_gave_up_name(name: str) -> bool:
    return _GAVE_UP.fullmatch(name) is not None


def damaged_name(rank: int) -> str:
    return f"rank-{rank}.damaged"


def is_damaged_name(name: str) -> bool:
    return _DAMAGED.fullmatch(name) is not None


def mark_name(generation: int) -> str:
    return f"generation-{generation:05d}.json"


def parse_mark_name(name: str) -> int | None:
    match = _MARK.fullmatch(name)
    return int(match[1]) if match else None


def encode_part(part: Part) -> bytes:
    """The bytes of ``rank-<r>.json``."""
    fields = msgspec.to_builtins(part)
    if not part.incarnation:
        del fields["incarnation"]
    return _json(
        {
            **fields,
            "chunk_bytes": CHUNK_BYTES,
            "digest": DIGEST,
            "extra_digest": digest(part.extra),
            "file": blob_name(part.rank),
            "schema": SCHEMA,
        }
    )


def decode_part(raw: bytes, where: Path | str) -> Part:
    """Parse a part file.

    Raises:
        CorruptError: not JSON, another schema, a missing or impossible field; names ``where``.
    """
    part, form = _parse(raw, where, Part), _parse(raw, where, _PartForm)
    if (form.chunk_bytes, form.digest) != (CHUNK_BYTES, DIGEST):
        raise _unreadable(where, "unknown digest or chunk size")
    if digest(part.extra) != form.extra_digest:
        raise CorruptError(
            f"{where}: the extra state does not match its digest", remedy="use an older checkpoint"
        )
    return part


def encode_manifest(parts: Sequence[tuple[Part, bytes]]) -> bytes:
    """The bytes of MANIFEST.json for the (part, bytes of its file) of every rank, in any order.

    Raises:
        CorruptError: the parts do not form one complete step.
    """
    ordered = sorted(parts, key=lambda item: item[0].rank)
    first = ordered[0][0]
    same = {(p.run_id, p.step, p.generation, p.incarnation, p.mesh.world_size) for p, _ in ordered}
    if len(same) != 1 or [p.rank for p, _ in ordered] != list(range(first.mesh.world_size)):
        raise CorruptError(
            f"the parts in {step_dir_name(first.step, first.generation)} do not belong together",
            remedy="give each run its own checkpoints folder, and save the step again",
        )
    files = [
        {"bytes": p.file_bytes, "part_digest": digest(raw), "rank": p.rank} for p, raw in ordered
    ]
    mesh = msgspec.to_builtins(first.mesh)
    del mesh["rank"]
    return _json(
        {
            "files": files,
            "generation": first.generation,
            "mesh": mesh,
            "run_id": first.run_id,
            "schema": SCHEMA,
            "step": first.step,
            "total_bytes": sum(p.file_bytes for p, _ in ordered),
            "world_size": first.mesh.world_size,
        }
    )


def decode_manifest(raw: bytes, where: Path | str) -> Manifest:
    """Parse MANIFEST.json. Raises CorruptError naming ``where``."""
    return _parse(raw, where, Manifest)


def mark_bytes(generation: int, restart_step: int) -> bytes:
    """Return the bytes of ``generation-<g>.json``.

    They record that ``generation`` continued from ``restart_step``, so later steps of older
    generations are superseded.
    """
    return _json({"generation": generation, "restart_step": restart_step, "schema": SCHEMA})


def decode_mark(raw: bytes, where: Path | str) -> int:
    """The restart step of a generation mark, -1 allowed (from scratch). Raises CorruptError."""
    return _parse(raw, where, _Mark).restart_step


def num_chunks(nbytes: int) -> int:
    """Number of 8 MiB chunks in ``nbytes`` of data."""
    return -(-nbytes // CHUNK_BYTES)


def _json(fields: Mapping[str, Any]) -> bytes:
    return (
        json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    )


def _parse(raw: bytes, where: Path | str, kind: type[T]) -> T:
    try:
        schema = msgspec.json.decode(raw, type=_Schema).schema
        if schema == SCHEMA:
            return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError) as error:  # of msgspec, or of the decoder of UTF-8
        raise _unreadable(where, str(error)) from error
    raise CorruptError(
        f"{where}: schema {schema!r}, this version reads {SCHEMA}",
        remedy="use the Headway version that wrote it",
    )


def _unreadable(where: Path | str, why: str) -> CorruptError:
    return CorruptError(f"{where} cannot be read: {why}", remedy="use an older checkpoint")
