"""The interface of an optimizer to the training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Protocol

import torch
from headway.trainer.state.flat import FlatChunk

SumPieces = Callable[[torch.Tensor], object]
"""Adds a small fp64 tensor, in place, over the ranks that hold pieces of the same parameters: those
of tp and dp. All of them call it together and get the same bits."""

AfterBucket = Callable[[int], object]
"""Called with the number of each bucket when its update is complete."""

BLOCK_ELEMENTS = 1 << 17
"""Elements updated and cast together on a CPU: their 2.5 MiB are still in a cache when the cast
reads them. A GPU takes each shard as a whole."""


class Optimizer(Protocol):
    """Updates the flat shards of a rank.

    What it keeps for a parameter is in ``FlatChunk.fields``, under the names that it lists in
    ``moments``.
    """

    moments: ClassVar[tuple[str, ...]]

    def step(
        self,
        flats: Sequence[FlatChunk],
        lr: float,
        updates: int,
        grad_scale: float = 1.0,
        *,
        after_bucket: AfterBucket = lambda _: None,
    ) -> None:
        """Update the weights and moments of all buckets from their gradients.

        ``master`` and the moments are updated from ``grad_shard``, which is overwritten, and
        ``param_shard`` from ``master``.

        Args:
            updates: number of earlier updates. A skipped step does not count: the bias
                correction depends on what the moments have accumulated (Kingma and Ba, arXiv
                1412.6980, section 3).
            grad_scale: factor on the gradient, below 1 where the global norm is clipped.

        Raises:
            Aborted: the generation was fenced during a sum over ranks; the state must be restored.
        """


def blocks(flat: FlatChunk, gpu_elements: int | None = None) -> Iterator[tuple[slice, bool]]:
    """The pieces of a shard that are updated together, and whether their weights decay.

    ``gpu_elements`` bounds them on a GPU, for an update that needs temporary memory.
    """
    on_gpu = gpu_elements or max(flat.shard_numel, 1)
    size = BLOCK_ELEMENTS if flat.device.type == "cpu" else on_gpu
    for span in flat.spans:
        for start in range(span.start, span.stop, size):
            yield slice(start, min(start + size, span.stop)), span.weight_decay
