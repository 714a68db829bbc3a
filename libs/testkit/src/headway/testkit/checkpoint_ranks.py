"""A job of several ranks that saves through the library, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from headway.ckpt_store.client import CheckpointClient


def ranks(folder: Path, world_size: int = 2, **options: Any) -> list[CheckpointClient]:
    """The clients of all ranks, opened one after the other."""
    return [
        CheckpointClient(folder, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def save_all(clients: list[CheckpointClient], step: int, life: int = 1) -> None:
    """All ranks save ``step``; the state carries which start of the job saved it."""
    for client in clients:
        client.save(step, {"w": np.full(4000, float(step)), "life": life})


def restored(clients: list[CheckpointClient]) -> list[tuple[int, int]]:
    """(step, start of the job) that each rank restores."""
    found = [client.restore() for client in clients]
    return [(one[0], one[1]["life"]) for one in found if one is not None]
