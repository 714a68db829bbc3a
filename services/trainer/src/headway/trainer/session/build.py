"""Builds a rank's part of the model: a chunk for each of its virtual stages, over flat memory."""

from __future__ import annotations

import torch
from headway.common.plan.grid import Coordinates
from headway.trainer.config import RunConfig
from headway.trainer.model.chunk import Chunk
from headway.trainer.model.gpt import Recompute, build_chunk
from headway.trainer.optim.choice import moments
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.params import Precision


def build_model(
    config: RunConfig, place: Coordinates, tp: TensorParallel, device: torch.device
) -> tuple[list[Chunk], list[FlatChunk]]:
    """The chunks of the rank at ``place`` and the memory of all their buckets, in order.

    Nothing is initialised: weights come from a restore.
    """
    grid, train = config.parallel.grid, config.train
    precision = Precision.of(train.dtype)
    stages = config.stages
    chunks: list[Chunk] = []
    flats: list[FlatChunk] = []
    for stage in grid.stage_map.stages_of(place.pp, grid.vp):
        chunk = build_chunk(
            config.model,
            layers=stages[stage],
            is_first=stage == 0,
            is_last=stage == len(stages) - 1,
            tp=tp,
            precision=precision,
            device=device,
            recompute=Recompute(train.recompute, train.recompute_layers),
            compile_kernels=train.compile is True,
            table=chunks[0].table if chunks else None,
            num_buckets=config.parallel.num_buckets,
        )
        memory = [
            FlatChunk(
                bucket.params,
                dp_rank=place.dp,
                dp_size=grid.dp,
                precision=precision,
                moments=moments(config.optim),
                device=device,
            )
            for bucket in chunk.buckets
        ]
        chunk.bind(*memory)
        chunks.append(chunk)
        flats += memory
    return chunks, flats
