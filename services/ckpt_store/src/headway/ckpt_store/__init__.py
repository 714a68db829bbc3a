"""Checkpoint store: snapshots in shared memory made durable, with digests and atomic manifests.

Names load their module on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.ckpt_store.client import CheckpointClient
    from headway.ckpt_store.config import StoreConfig
    from headway.ckpt_store.folder import CheckpointInfo, mark_generation, newest
    from headway.ckpt_store.verify import read_shard, read_shard_into

_HOMES = {
    "CheckpointClient": "client",
    "CheckpointInfo": "folder",
    "StoreConfig": "config",
    "mark_generation": "folder",
    "newest": "folder",
    "read_shard": "verify",
    "read_shard_into": "verify",
}

__all__ = [
    "CheckpointClient",
    "CheckpointInfo",
    "StoreConfig",
    "mark_generation",
    "newest",
    "read_shard",
    "read_shard_into",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
