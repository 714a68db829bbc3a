"""Small snapshots and arenas for tests, ours and those of programs that use the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.ckpt_store.flush import Snapshot
from headway.common.node.arena import Arena

RUN_ID = "0123abcd"
HOLE_BYTES = 128


def small_layout(rank: int, world_size: int, num_floats: int = 3000) -> dict[str, Any]:
    """Two fp32 tensors (one cut by ``tp``-less flat sharding), one bf16, and holes between them."""
    sizes = [("blocks.0.attn.qkv.weight", "master", "float32", 4 * num_floats)]
    sizes += [("blocks.0.attn.qkv.weight", "exp_avg", "float32", 4 * num_floats)]
    sizes += [("head.weight", "param", "bfloat16", 2 * 333)]
    tensors, offset = [], 0
    for name, field, dtype, nbytes in sizes:
        tensors.append(
            {
                "name": name,
                "field": field,
                "dtype": dtype,
                "offset": offset,
                "nbytes": nbytes,
                "global_shape": [nbytes // (2 if dtype == "bfloat16" else 4)],
                "tp_dim": None,
                "tp_rank": 0,
                "tp_size": 1,
                "flat_start": 0,
                "flat_stop": nbytes // (2 if dtype == "bfloat16" else 4),
            }
        )
        offset += nbytes + HOLE_BYTES
    mesh = {"tp": 1, "pp": 1, "dp": world_size, "vp": 1, "rank": rank}
    return {"tensors": tensors, "mesh": mesh}


def slot_bytes(layout: dict[str, Any]) -> int:
    """Bytes of a slot for ``layout``, an odd number so that tails are exercised."""
    last = layout["tensors"][-1]
    return int(last["offset"]) + int(last["nbytes"]) + 77


def bytes_of(step: int, rank: int, nbytes: int, generation: int = 0) -> npt.NDArray[np.uint8]:
    """The state of ``rank`` at ``step``, different for every pair."""
    return np.random.default_rng([step, rank, generation]).integers(0, 256, nbytes, np.uint8)


def small_snapshot(
    step: int, rank: int = 0, world_size: int = 1, generation: int = 0, num_floats: int = 3000
) -> Snapshot:
    """A snapshot of ``small_layout`` with ``bytes_of`` and the step as extra state."""
    layout = small_layout(rank, world_size, num_floats)
    data = bytes_of(step, rank, slot_bytes(layout), generation)
    return Snapshot(RUN_ID, step, generation, layout, data, extra=b"extra %d" % step)


def small_arena(shm_dir: Path, rank: int = 0, world_size: int = 1, num_floats: int = 3000) -> Arena:
    """A new arena in ``shm_dir`` for ``small_layout``."""
    layout = small_layout(rank, world_size, num_floats)
    return Arena.create(
        shm_dir / f"arena-{rank}.bin",
        run_id=RUN_ID,
        rank=rank,
        slot_bytes=slot_bytes(layout),
        layout=json.dumps(layout).encode(),
    )


def seal_step(
    arena: Arena, step: int, *, generation: int = 0, wanted: bool = True, commit: bool = True
) -> None:
    """What a worker does at the end of a step."""
    slot = arena.begin(step, generation)
    slot.data[:] = bytes_of(step, arena.rank, arena.slot_bytes, generation)
    arena.seal(slot, b"extra %d" % step, wanted)
    if commit:
        arena.commit(step)
