"""What a step works with: the rank's model and state, and the groups of its generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from headway.trainer.batches import Split
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.model.chunk import Chunk
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.recorder import Recorder
from headway.trainer.snapshot import Snapshots
from headway.trainer.state.flat import FlatChunk


@dataclass
class StepContext:
    """What a rank trains with; ``groups`` belongs to one generation, the rest is kept."""

    config: RunConfig
    rank: int
    chunks: Sequence[Chunk]
    flats: Sequence[FlatChunk]
    tp: TensorParallel
    groups: Groups
    snapshots: Snapshots
    recorder: Recorder
    device: torch.device
    fingerprints: Mapping[Split, str]
    """Fingerprints of the data read so far in this run; stored in snapshots."""
