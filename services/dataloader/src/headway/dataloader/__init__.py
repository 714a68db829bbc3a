"""Deterministic token batches through shared memory, read once per node. Names load on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.dataloader.client import Batch, DataClient
    from headway.dataloader.config import DataConfig, StreamSpec, stream_spec
    from headway.dataloader.dataset import Dataset
    from headway.dataloader.prepare import prepare
    from headway.dataloader.tokenizer import Tokenizer

_HOMES = {
    "Batch": "client",
    "DataClient": "client",
    "DataConfig": "config",
    "Dataset": "dataset",
    "StreamSpec": "config",
    "Tokenizer": "tokenizer",
    "prepare": "prepare",
    "stream_spec": "config",
}

__all__ = [
    "Batch",
    "DataClient",
    "DataConfig",
    "Dataset",
    "StreamSpec",
    "Tokenizer",
    "prepare",
    "stream_spec",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
