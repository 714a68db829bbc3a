"""Damage to a rank's numbers that ``headway inject`` asks for: what a broken device would do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from headway.trainer.state.flat import FlatChunk


def spoil(damage: str, flat: FlatChunk) -> None:
    """Change the largest of the chunk's gradients before they are reduced.

    ``damage`` is ``nan``, or ``flip`` for the highest bit of its exponent.
    """
    largest = int(flat.grads.abs().argmax())
    if (change := _CHANGES.get(damage)) is not None:
        change(flat.grads[largest : largest + 1])


def _flip(one: torch.Tensor) -> None:
    bits = one.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()])
    bits ^= 1 << (8 * one.element_size() - 2)


_CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "nan": lambda one: one.fill_(torch.nan),
    "flip": _flip,
}
