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

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash
from headway.common.errors import CorruptError
from headway.common.node import arena_format

SCHEMA = 1
CHUNK_BYTES = arena_format.CHUNK_BYTES
MANIFEST_NAME = "MANIFEST.json"
KEEP_NAME = "KEEP"
"""An empty file of this name pins a step: retention keeps it."""
DIGEST = "xxh3-64"

_STEP_DIR = re.compile(r"step-(\d{8,})\.g(\d+)")
_PART = re.compile(r"rank-(\d+)\.json")
_GAVE_UP = re.compile(r"rank-\d+\.gave-up")
_DAMAGED = re.compile(r"rank-\d+\.damaged")
_MARK = re.compile(r"generation-(\d{5,})\.json")


@dataclass(frozen=True)
class Mesh:
    """Degrees of parallelism of the run that saved, and this rank's place in it."""

    rank: int
    tp: int = 1
    pp: int = 1
    dp: int = 1
    vp: int = 1

    @property
    def world_size(self) -> int:
        """Ranks that make a step complete; ``vp`` chunks share a rank and do not count."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class Part:
    """What one rank contributed: everything needed to read and verify its blob."""

    run_id: str
    step: int
    generation: int
    mesh: Mesh
    file_bytes: int
    data_start: int
    """Bytes before the data in the blob (header and its padding), a multiple of 4096."""
    header_digest: str
    """Digest of the header."""
    chunks: tuple[str, ...]
    """Digest of each 8 MiB of data, 16 hex digits; the last chunk may be shorter."""
    layout: Mapping[str, Any] = field(default_factory=dict)
    extra: bytes = b""
    incarnation: str = ""
    """Which start of the job wrote it, if generations are ambiguous (see ``incarnation.py``)."""

    @property
    def rank(self) -> int:
        return self.mesh.rank

    @property
    def data_bytes(self) -> int:
        return self.file_bytes - self.data_start


@dataclass(frozen=True)
class Manifest:
    """A complete step: which ranks, how many bytes, and the digest of each part file."""

    run_id: str
    step: int
    generation: int
    world_size: int
    part_digests: tuple[str, ...]
    file_bytes: tuple[int, ...]


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
    incarnation = {"incarnation": part.incarnation} if part.incarnation else {}
    return _json(
        {
            **incarnation,
            "chunk_bytes": CHUNK_BYTES,
            "chunks": list(part.chunks),
            "data_start": part.data_start,
            "digest": DIGEST,
            "extra": base64.b64encode(part.extra).decode(),
            "extra_digest": digest(part.extra),
            "file": blob_name(part.rank),
            "file_bytes": part.file_bytes,
            "generation": part.generation,
            "header_digest": part.header_digest,
            "layout": part.layout,
            "mesh": _mesh_fields(part.mesh),
            "run_id": part.run_id,
            "schema": SCHEMA,
            "step": part.step,
        }
    )


def decode_part(raw: bytes, where: Path | str) -> Part:
    """Parse a part file.

    Raises:
        CorruptError: not JSON, another schema, a missing or impossible field; names ``where``.
    """
    fields = _parse(raw, where)
    with _reading(where):
        part = Part(
            run_id=_text(fields["run_id"]),
            step=_count(fields["step"]),
            generation=_count(fields["generation"]),
            mesh=mesh_from(fields["mesh"]),
            file_bytes=_count(fields["file_bytes"]),
            data_start=_count(fields["data_start"]),
            header_digest=_text(fields["header_digest"]),
            chunks=tuple(_text(item) for item in fields["chunks"]),
            layout=dict(fields["layout"]),
            extra=base64.b64decode(fields["extra"], validate=True),
            incarnation=_text(fields.get("incarnation", "")),
        )
        extra_digest = _text(fields["extra_digest"])
        if fields["chunk_bytes"] != CHUNK_BYTES or fields["digest"] != DIGEST:
            raise ValueError("unknown digest or chunk size")
        if part.data_bytes < 0 or len(part.chunks) != num_chunks(part.data_bytes):
            raise ValueError(f"{len(part.chunks)} chunk digests for {part.data_bytes} bytes")
    if digest(part.extra) != extra_digest:
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
    mesh = _mesh_fields(first.mesh)
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
    fields = _parse(raw, where)
    with _reading(where):
        files = fields["files"]
        manifest = Manifest(
            run_id=_text(fields["run_id"]),
            step=_count(fields["step"]),
            generation=_count(fields["generation"]),
            world_size=_count(fields["world_size"]),
            part_digests=tuple(_text(item["part_digest"]) for item in files),
            file_bytes=tuple(_count(item["bytes"]) for item in files),
        )
        if [item["rank"] for item in files] != list(range(manifest.world_size)) or not files:
            raise ValueError(f"it names {len(files)} files for {manifest.world_size} ranks")
    return manifest


def mark_bytes(generation: int, restart_step: int) -> bytes:
    """Return the bytes of ``generation-<g>.json``.

    They record that ``generation`` continued from ``restart_step``, so later steps of older
    generations are superseded.
    """
    return _json({"generation": generation, "restart_step": restart_step, "schema": SCHEMA})


def decode_mark(raw: bytes, where: Path | str) -> int:
    """The restart step of a generation mark, -1 allowed (from scratch). Raises CorruptError."""
    fields = _parse(raw, where)
    with _reading(where):
        return _count(fields["restart_step"] + 1) - 1


def num_chunks(nbytes: int) -> int:
    """Number of 8 MiB chunks in ``nbytes`` of data."""
    return -(-nbytes // CHUNK_BYTES)


def mesh_from(fields: Mapping[str, Any]) -> Mesh:
    """A mesh from a layout's ``mesh`` table. Raises ValueError when it is impossible."""
    mesh = Mesh(
        **{name: _count(fields.get(name, 1)) for name in ("tp", "pp", "dp", "vp")},
        rank=_count(fields["rank"]),
    )
    if not 0 <= mesh.rank < mesh.world_size:
        raise ValueError(f"rank {mesh.rank} of {mesh.world_size}")
    return mesh


def _mesh_fields(mesh: Mesh) -> dict[str, int]:
    return {"tp": mesh.tp, "pp": mesh.pp, "dp": mesh.dp, "vp": mesh.vp, "rank": mesh.rank}


def _json(fields: Mapping[str, Any]) -> bytes:
    return (
        json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    )


def _parse(raw: bytes, where: Path | str) -> dict[str, Any]:
    with _reading(where):
        fields = json.loads(raw)
        if not isinstance(fields, dict):
            raise ValueError("it is not a JSON object")
    if fields.get("schema") != SCHEMA:
        raise CorruptError(
            f"{where}: schema {fields.get('schema')!r}, this version reads {SCHEMA}",
            remedy="use the Headway version that wrote it",
        )
    return fields


class _reading:
    """Converts any error about a field into a CorruptError."""

    def __init__(self, where: Path | str) -> None:
        self.where = where

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        wrong = (KeyError, TypeError, ValueError, AttributeError, RecursionError, binascii.Error)
        if isinstance(error, wrong):
            raise CorruptError(
                f"{self.where} cannot be read: {error!r}", remedy="use an older checkpoint"
            ) from error


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value
