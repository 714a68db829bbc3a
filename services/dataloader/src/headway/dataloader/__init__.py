"""Deterministic token batches through shared memory, read once per node.

Names load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.dataloader.client import Batch, DataClient
    from headway.dataloader.config import DataConfig, StreamSpec, stream_spec
    from headway.dataloader.dataset import Dataset
    from headway.dataloader.manifest import changed_texts
    from headway.dataloader.prepare import prepare
    from headway.dataloader.samples import Piece, SampleReader
    from headway.dataloader.tokenizer import Tokenizer

__all__ = [
    "Batch",
    "DataClient",
    "DataConfig",
    "Dataset",
    "Piece",
    "SampleReader",
    "StreamSpec",
    "Tokenizer",
    "changed_texts",
    "prepare",
    "stream_spec",
]

__getattr__, __dir__ = lazy(
    __name__,
    client="Batch DataClient",
    config="DataConfig StreamSpec stream_spec",
    dataset="Dataset",
    manifest="changed_texts",
    prepare="prepare",
    samples="Piece SampleReader",
    tokenizer="Tokenizer",
)
