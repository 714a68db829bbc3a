"""The layout of a snapshot in its arena slot."""

from __future__ import annotations

import json
from collections.abc import Sequence

from headway.common.plan.grid import Grid
from headway.trainer.state.flat import FlatChunk

SLOT_ALIGNMENT = 64


def offsets(flats: Sequence[FlatChunk]) -> tuple[list[int], int]:
    """Where each chunk's ``state`` starts in a slot, and the slot's size, in bytes."""
    starts, position = [], 0
    for flat in flats:
        starts.append(position)
        position += -(-flat.state.nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
    return starts, position


def layout(flats: Sequence[FlatChunk], grid: Grid, rank: int) -> bytes:
    """The arena's layout JSON: every tensor's piece and the mesh."""
    starts, _ = offsets(flats)
    tensors = [
        entry
        for flat, start in zip(flats, starts, strict=True)
        for entry in flat.layout_entries(start)
    ]
    mesh = {"tp": grid.tp, "pp": grid.pp, "dp": grid.dp, "vp": grid.vp, "rank": rank}
    return json.dumps({"tensors": tensors, "mesh": mesh}, separators=(",", ":")).encode()
