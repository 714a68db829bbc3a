"""Whole tensors out of a checkpoint of any grid, and into one, one at a time.

Each rank's part lists which elements of which tensor its blob holds: a piece of the flattened
tensor-parallel shard. The pieces of a tensor are read from the blobs of all ranks, with their
digests, and put together.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.ckpt_store.files import Files
from headway.ckpt_store.flush import Snapshot, write_manifest, write_shard
from headway.ckpt_store.folder import CheckpointInfo, open_checkpoint
from headway.ckpt_store.manifest import CHUNK_BYTES, Part, blob_name, step_dir_name
from headway.ckpt_store.reading import corrupt
from headway.ckpt_store.stream import TensorStream
from headway.ckpt_store.verify import read_chunk, read_part
from headway.common.errors import InputError
from headway.common.plan.grid import Grid

CACHED_CHUNKS = 8
"""Chunks of 8 MiB that are kept: many small tensors share one."""


@dataclass(frozen=True)
class _Piece:
    """Elements [start, stop) of a flattened shard, at byte ``offset`` of a rank's data."""

    rank: int
    tp_rank: int
    start: int
    stop: int
    offset: int


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    tp_dim: int | None
    tp_size: int
    pieces: tuple[_Piece, ...]

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of one tensor-parallel shard."""
        shape = list(self.shape)
        if self.tp_dim is not None:
            shape[self.tp_dim] //= self.tp_size
        return tuple(shape)


class CheckpointTensors:
    """The tensors of one ``field`` (``master`` or a moment) of a checkpoint that a run wrote."""

    def __init__(self, info: CheckpointInfo, field: str = "master") -> None:
        """Read every part file.

        Raises:
            InputError: it was not written by a run. CorruptError: a part is missing or changed, or
                elements of a tensor are in no blob.
        """
        self.info = info
        self._parts = [read_part(info, rank) for rank in range(info.world_size)]
        self._chunks: OrderedDict[tuple[int, int], memoryview] = OrderedDict()
        try:
            self._tensors = dict(self._collect(field))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError(
                f"{info.path} does not list the tensors of a model ({error!r})",
                remedy="give a checkpoint that `headway run` wrote",
            ) from error
        if not self._tensors:
            raise InputError(
                f"{info.path} does not hold {field} weights",
                remedy="give a checkpoint that `headway run` wrote",
            )

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Global shape of every tensor, in the order of the model's stages."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str) -> npt.NDArray[Any]:
        """One whole tensor in its global shape.

        Raises:
            CorruptError: a digest is wrong, or the disk cannot read a blob.
        """
        tensor = self._tensors[name]
        whole = np.empty(tensor.shape, tensor.dtype)
        for tp_rank in sorted({piece.tp_rank for piece in tensor.pieces}):
            local = whole if tensor.tp_dim is None else np.empty(tensor.local_shape, tensor.dtype)
            flat = local.reshape(-1)
            for piece in tensor.pieces:
                if piece.tp_rank == tp_rank:
                    target = flat[piece.start : piece.stop].view(np.uint8)
                    self._fill(self._parts[piece.rank], piece.offset, target)
            if tensor.tp_dim is not None:
                size = tensor.local_shape[tensor.tp_dim]
                where = [slice(None)] * whole.ndim
                where[tensor.tp_dim] = slice(tp_rank * size, (tp_rank + 1) * size)
                whole[tuple(where)] = local
        return whole

    def _fill(self, part: Part, offset: int, target: npt.NDArray[np.uint8]) -> None:
        done = 0
        while done < target.nbytes:
            number, inside = divmod(offset + done, CHUNK_BYTES)
            piece = self._chunk(part, number)[inside : inside + target.nbytes - done]
            target[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done += len(piece)

    def _chunk(self, part: Part, number: int) -> memoryview:
        key = (part.rank, number)
        if key not in self._chunks:
            path = self.info.path / blob_name(part.rank)
            self._chunks[key] = memoryview(read_chunk(path, part, number))
            if len(self._chunks) > CACHED_CHUNKS:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(key)
        return self._chunks[key]

    def _collect(self, field: str) -> Iterator[tuple[str, _Tensor]]:
        entries: dict[str, list[tuple[Part, Mapping[str, Any]]]] = defaultdict(list)
        for part in sorted(self._parts, key=lambda part: (_stage(part), part.rank)):
            for entry in part.layout["tensors"]:
                if entry["field"] == field:
                    entries[entry["name"]].append((part, entry))
        for name, found in entries.items():
            tensor = _tensor(found)
            _check_complete(self.info, name, tensor)
            yield name, tensor


def _stage(part: Part) -> int:
    mesh = part.mesh
    return Grid(tp=mesh.tp, pp=mesh.pp, dp=mesh.dp, vp=mesh.vp).coordinates(mesh.rank).pp


def _tensor(found: list[tuple[Part, Mapping[str, Any]]]) -> _Tensor:
    first = found[0][1]
    tp_dim = first["tp_dim"]
    pieces = tuple(
        _Piece(
            part.rank,
            int(entry["tp_rank"]),
            int(entry["flat_start"]),
            int(entry["flat_stop"]),
            int(entry["offset"]),
        )
        for part, entry in found
        if (entry.get("copy", 0) if tp_dim is not None else entry["tp_rank"]) == 0  # one of all
    )
    shape = tuple(int(size) for size in first["global_shape"])
    return _Tensor(shape, np.dtype(first["dtype"]), tp_dim, int(first["tp_size"]), pieces)


def _check_complete(info: CheckpointInfo, name: str, tensor: _Tensor) -> None:
    size = math.prod(tensor.local_shape)
    for tp_rank in range(tensor.tp_size if tensor.tp_dim is not None else 1):
        position = 0
        mine = sorted((p.start, p.stop) for p in tensor.pieces if p.tp_rank == tp_rank)
        for start, stop in mine:
            if start != position:
                break
            position = stop
        if position != size:
            raise corrupt(info.path, f"elements of {name} are missing")


def write_tensors(
    checkpoints: Path,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], npt.NDArray[np.float32]],
    *,
    extra: bytes,
    run_id: str,
) -> CheckpointInfo:
    """Write a checkpoint of step 0 by one rank that holds whole fp32 weights and no moments.

    ``read`` is called once per name, in the order of ``shapes``.

    Raises:
        OSError: from the disk; ENOSPC before the first byte is written.
    """
    entries, sizes, offset = [], [], 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        entries.append(
            {
                "name": name,
                "field": "master",
                "dtype": "float32",
                "offset": offset,
                "nbytes": 4 * count,
                "global_shape": list(shape),
                "tp_dim": None,
                "tp_rank": 0,
                "tp_size": 1,
                "flat_start": 0,
                "flat_stop": count,
            }
        )
        sizes.append((name, 4 * count))
        offset += 4 * count
    layout = {"tensors": entries, "mesh": {"tp": 1, "pp": 1, "dp": 1, "vp": 1, "rank": 0}}
    data = TensorStream(sizes, lambda name: read(name).reshape(-1).view(np.uint8))
    files = Files("whole")
    write_shard(files, checkpoints, Snapshot(run_id, 0, 0, layout, data, extra))
    write_manifest(files, checkpoints / step_dir_name(0, 0))
    return open_checkpoint(checkpoints, 0, 0)
