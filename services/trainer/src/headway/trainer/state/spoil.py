"""Damage to a rank's numbers that ``headway inject`` asks for: what a broken device would do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from headway.common.log import get_logger
from headway.common.node.failpoints import damage_at
from headway.trainer.state.flat import FlatChunk

log = get_logger("spoil")


class Spoiler:
    """Does what is armed to the gradients of a rank.

    A value that is not a number comes again if the step is repeated, a flipped bit does not.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._step = -1
        self._done: dict[int, str] = {}
        """What was done in this step, by bucket."""

    def spoil(self, flat: FlatChunk, bucket: int, step: int, *, is_compared: bool = True) -> None:
        """Change the largest of ``bucket``'s gradients before they are added to those of others.

        ``is_compared`` is false if gradients are compared in other steps and not in this one.
        """
        if step != self._step and self._done:
            self._done = {}
        damage = damage_at(
            "worker.gradients", step=step, bucket=bucket, rank=self._rank, compared=int(is_compared)
        )
        if damage == "nan":
            self._step, self._done[bucket] = step, damage
        if damage := damage or self._done.get(bucket, ""):
            spoil(damage, flat)


def spoil(damage: str, flat: FlatChunk) -> None:
    """Change the largest of a bucket's gradients.

    ``damage`` is ``nan``, or ``flip`` for the highest bit of its exponent. The log says of which
    tensor it is, which what finds it can be compared with.
    """
    if (change := _CHANGES.get(damage)) is None:
        return
    index = int(flat.grads.abs().argmax())
    name = next(one.spec.name for one in flat.placed if one.start <= index < one.stop)
    log.warning("injected", hit=f"{damage} in the gradient of {name}")
    change(flat.grads[index : index + 1])


def flip_largest(values: torch.Tensor) -> None:
    """Flip the highest bit of the exponent of the largest of ``values``."""
    index = int(values.abs().argmax())
    _flip(values[index : index + 1])


def _flip(one: torch.Tensor) -> None:
    bits = one.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()])
    bits ^= 1 << (8 * one.element_size() - 2)


_CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "nan": lambda one: one.fill_(torch.nan),
    "flip": _flip,
}
