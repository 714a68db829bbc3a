"""AdamW on the flat shard: one fused pass over master, moments and gradient.

Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101) on matrices, none on norms.
"""

from __future__ import annotations

import torch
from headway.trainer.config import OptimConfig
from headway.trainer.state.flat import FlatChunk
from torch.optim.adamw import adamw


class AdamW:
    """Stateless: the moments are in ``FlatChunk.state``, the number of updates is an argument."""

    def __init__(self, config: OptimConfig) -> None:
        self.config = config

    @torch.no_grad()
    def step(self, flat: FlatChunk, lr: float, updates: int, grad_scale: float = 1.0) -> None:
        """Update ``flat.master`` and the moments from ``flat.grad_shard``; parameters
        are cast separately.

        Args:
            updates: number of earlier updates. A skipped step does not count: the bias
                correction depends on what the moments have accumulated (Kingma and Ba, arXiv
                1412.6980, section 3).
            grad_scale: factor on the gradient, below 1 where the global norm is clipped; the
                gradient shard is scaled in place.
        """
        if grad_scale != 1.0:
            flat.grad_shard.mul_(grad_scale)
        count = torch.tensor(float(updates), device=flat.device)
        for span in flat.spans:
            where = slice(span.start, span.stop)
            adamw(
                [flat.master[where]],
                [flat.grad_shard[where]],
                [flat.exp_avg[where]],
                [flat.exp_avg_sq[where]],
                [],
                [count.clone()],  # the kernel adds 1 to the count
                fused=True,
                amsgrad=False,
                maximize=False,
                beta1=self.config.beta1,
                beta2=self.config.beta2,
                lr=lr,
                weight_decay=self.config.weight_decay if span.weight_decay else 0.0,
                eps=self.config.eps,
            )
