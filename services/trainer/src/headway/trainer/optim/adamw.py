"""AdamW on the flat shard: one pass over master, moments and gradient, cast included.

Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101) on matrices, none on norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from headway.trainer.config import OptimConfig
from headway.trainer.optim.base import AfterBucket, blocks
from headway.trainer.state.flat import FlatChunk
from torch.optim.adamw import adamw


class AdamW:
    """Stateless: the moments are in ``FlatChunk.fields``, the number of updates is an argument."""

    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __init__(self, config: OptimConfig) -> None:
        self.config = config

    @torch.no_grad()
    def step(
        self,
        flats: Sequence[FlatChunk],
        lr: float,
        updates: int,
        grad_scale: float = 1.0,
        *,
        after_bucket: AfterBucket = lambda _: None,
    ) -> None:
        """See ``Optimizer``."""
        for bucket, flat in enumerate(flats):
            # filled by a kernel: torch.tensor would copy from pageable memory, and wait for it
            count = torch.full((), float(updates), device=flat.device)
            inverse = _inverse_scale(flat, grad_scale)
            for where, decays in blocks(flat):
                decay = self.config.weight_decay if decays else 0.0
                self._update(flat, where, lr, decay, count, inverse)
            after_bucket(bucket)

    def _update(
        self,
        flat: FlatChunk,
        where: slice,
        lr: float,
        weight_decay: float,
        count: torch.Tensor,
        inverse: torch.Tensor | None,
    ) -> None:
        master = flat.master[where]
        adamw(
            [master],
            [flat.grad_shard[where]],
            [flat.fields["exp_avg"][where]],
            [flat.fields["exp_avg_sq"][where]],
            [],
            [count.clone()],  # the kernel adds 1 to the count
            fused=True,
            grad_scale=inverse,
            amsgrad=False,
            maximize=False,
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            lr=lr,
            weight_decay=weight_decay,
            eps=self.config.eps,
        )
        flat.param_shard[where].copy_(master)


def _inverse_scale(flat: FlatChunk, grad_scale: float) -> torch.Tensor | None:
    """Return what the kernel divides the gradient by, or None for nothing.

    The kernel would divide an fp64 gradient by an fp32 number, so the shard is scaled here instead.
    """
    if grad_scale == 1.0:
        return None
    if flat.master.dtype == torch.float64:
        flat.grad_shard.mul_(grad_scale)
        return None
    return torch.full((), 1.0 / grad_scale, device=flat.device)
