"""Builds a rank's part of the model: a chunk over flat memory per virtual stage."""

from __future__ import annotations

import torch
from headway.common.plan.grid import Coordinates
from headway.trainer.config import RunConfig
from headway.trainer.model.gpt import Chunk
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.params import Precision


def build_model(
    config: RunConfig, place: Coordinates, tp: TensorParallel, device: torch.device
) -> tuple[list[Chunk], list[FlatChunk]]:
    """The chunks of the rank at ``place`` and the memory that each is bound to, in order.

    Chunk ``c`` of pipeline rank ``r`` is virtual stage ``c * pp + r``. Nothing is initialised:
    weights come from a restore.
    """
    grid = config.parallel.grid
    precision = Precision.of(config.train.dtype)
    stages = grid.pp * grid.vp
    depth = config.model.layers // stages
    chunks, flats = [], []
    for index in range(grid.vp):
        stage = index * grid.pp + place.pp
        chunk = Chunk(
            config.model,
            layers=range(stage * depth, (stage + 1) * depth),
            is_first=stage == 0,
            is_last=stage == stages - 1,
            tp=tp,
            precision=precision,
            device=device,
        )
        flat = FlatChunk(
            chunk.params, dp_rank=place.dp, dp_size=grid.dp, precision=precision, device=device
        )
        chunk.bind(flat)
        chunks.append(chunk)
        flats.append(flat)
    return chunks, flats
