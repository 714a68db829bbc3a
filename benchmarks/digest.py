"""The digest of what a run has learned."""

from __future__ import annotations

import xxhash
from headway.ckpt_store.client import newest, read_shard
from headway.console.run import Run


def final_digest(run: Run) -> str:
    """xxh3 of every rank's master parameters in the last checkpoint, in rank order."""
    info = newest(run.folder.checkpoints)
    assert info is not None, f"{run.name} left no checkpoint"
    assert info.step == run.config.train.steps, f"{run.name} ends at checkpoint {info.step}"
    digest = xxhash.xxh3_128()
    for rank in range(run.config.parallel.world_size):
        data, _ = read_shard(info, rank)
        digest.update(data)
    return digest.hexdigest()
