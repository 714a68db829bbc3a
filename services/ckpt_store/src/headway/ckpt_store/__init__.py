"""Checkpoint store: snapshots in shared memory made durable, with digests and atomic manifests.

Names load their module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.ckpt_store.client import CheckpointClient
    from headway.ckpt_store.config import StoreConfig
    from headway.ckpt_store.folder import (
        CheckpointInfo,
        complete,
        has_mark,
        look,
        mark_generation,
        newest,
    )
    from headway.ckpt_store.store_watch import StoreWatch
    from headway.ckpt_store.verify import read_shard, read_shard_into

__all__ = [
    "CheckpointClient",
    "CheckpointInfo",
    "StoreConfig",
    "StoreWatch",
    "complete",
    "has_mark",
    "look",
    "mark_generation",
    "newest",
    "read_shard",
    "read_shard_into",
]

__getattr__, __dir__ = lazy(
    __name__,
    client="CheckpointClient",
    config="StoreConfig",
    folder="CheckpointInfo complete has_mark look mark_generation newest",
    store_watch="StoreWatch",
    verify="read_shard read_shard_into",
)
