"""Looks at what enters and leaves each layer of a pass, to find where numbers stop being finite.

It waits for the device at every layer, so only a step that is repeated is watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from headway.trainer.model.block import Block
from headway.trainer.model.chunk import Chunk
from headway.trainer.model.positions import Positions
from headway.trainer.model.tape import Tape

Direction = Literal["forward", "backward"]
Notice = Callable[[Direction, int], object]
"""Called with the layer whose result was the first that is not finite; -1 stands for the embedding,
the number of layers for the head."""


def is_finite(values: torch.Tensor) -> bool:
    """Whether no element is infinite or NaN."""
    return bool(values.isfinite().all())


@contextmanager
def watching(chunks: Sequence[Chunk], layers: Sequence[range], notice: Notice) -> Iterator[None]:
    """Watch ``chunks``, which consist of these layers."""
    blocks = [chunk.blocks for chunk in chunks]
    try:
        for chunk, numbers in zip(chunks, layers, strict=True):
            chunk.blocks = [
                _Watched(
                    block,
                    layer,
                    follows_embedding=chunk.is_first and layer == numbers[0],
                    precedes_head=chunk.is_last and layer == numbers[-1],
                    notice=notice,
                )
                for block, layer in zip(chunk.blocks, numbers, strict=True)
            ]
        yield
    finally:
        for chunk, own in zip(chunks, blocks, strict=True):
            chunk.blocks = own


class _Watched:
    """A ``Block`` that reports when its result is not finite although what it was given is."""

    def __init__(
        self,
        block: Block,
        layer: int,
        *,
        follows_embedding: bool,
        precedes_head: bool,
        notice: Notice,
    ) -> None:
        self._block, self._layer, self._notice = block, layer, notice
        self._follows_embedding, self._precedes_head = follows_embedding, precedes_head

    def forward(self, x: torch.Tensor, at: Positions, tape: Tape | None) -> torch.Tensor:
        """See ``Block``."""
        y = self._block.forward(x, at, tape)
        self._look("forward", x, y, self._layer - 1 if self._follows_embedding else None)
        return y

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """See ``Block``."""
        grad_x = self._block.backward(grad, tape)
        self._look("backward", grad, grad_x, self._layer + 1 if self._precedes_head else None)
        return grad_x

    def _look(
        self, direction: Direction, given: torch.Tensor, result: torch.Tensor, giver: int | None
    ) -> None:
        """``giver`` made what was given, if that is a part of the model that is not watched."""
        if not is_finite(given):
            if giver is not None:
                self._notice(direction, giver)
        elif not is_finite(result):
            self._notice(direction, self._layer)
