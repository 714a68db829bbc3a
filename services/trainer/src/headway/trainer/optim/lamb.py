"""LAMB on the flat shard: Adam's direction, scaled for each parameter by its trust ratio.

You et al., arXiv 1904.00962, algorithm 2; MegaScale trains with it at four times the batch (arXiv
2402.15627, section 3.1). For each parameter w, such as one weight matrix of one layer:

    u = m_hat / (sqrt(v_hat) + eps) + weight_decay * w
    w -= lr * r * u,  r = |w| / |u|

m_hat and v_hat are the bias-corrected moments; r is 1 where |w| or |u| is 0. ``max_trust_ratio``
bounds r, which the paper leaves to the function phi and its implementation leaves out.

Norms, which do not decay, take r = 1 and so Adam's update. So do the authors' implementation, which
excludes from the adaptation what it excludes from the decay (``exclude_from_layer_adaptation``),
and NVIDIA's (``FusedLAMB`` without ``use_nvlamb``). Algorithm 2 itself makes no exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from headway.trainer.config import OptimConfig
from headway.trainer.optim.base import AfterBucket, SumPieces, blocks
from headway.trainer.state.flat import FlatChunk, square_sum

GPU_ELEMENTS = 1 << 24
"""Elements whose direction is computed together on a GPU: it needs twice their memory."""


class Lamb:
    """Stateless, as ``AdamW``, with the same moments.

    A parameter's norms are sums over its pieces on dp and tp ranks. The squares of all parameters
    of all chunks are summed in fp64, in one reduction; a pipeline stage has its own parameters, so
    pp takes no part. All ranks of a stage use the same bits, so replicas stay equal.
    """

    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __init__(self, config: OptimConfig, sum_pieces: SumPieces) -> None:
        self.config, self._sum_pieces = config, sum_pieces

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
        for flat in flats:
            for where, decays in blocks(flat, GPU_ELEMENTS):
                decay = self.config.weight_decay if decays else 0.0
                self._direct(flat, where, updates + 1, grad_scale, decay)
        ratios = self._trust_ratios(flats)
        for bucket, flat in enumerate(flats):
            for place, low, high in flat.owned():
                where = slice(low - flat.start, high - flat.start)
                update = flat.grad_shard[where]
                if place.spec.weight_decay:
                    update.mul_(ratios[place.spec.name])
                flat.master[where].sub_(update, alpha=lr)
                flat.param_shard[where].copy_(flat.master[where])
            after_bucket(bucket)

    def _direct(
        self, flat: FlatChunk, where: slice, count: int, grad_scale: float, decay: float
    ) -> None:
        """Replace the gradient by u, the direction of update number ``count``."""
        beta1, beta2 = self.config.beta1, self.config.beta2
        master, grad = flat.master[where], flat.grad_shard[where]
        mean, square = flat.fields["exp_avg"][where], flat.fields["exp_avg_sq"][where]
        if grad_scale != 1.0:
            grad.mul_(grad_scale)
        mean.lerp_(grad, 1.0 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
        root = (square / (1.0 - beta2**count)).sqrt_().add_(self.config.eps)
        torch.div(mean / (1.0 - beta1**count), root, out=grad)
        if decay:
            grad.add_(master, alpha=decay)

    def _trust_ratios(self, flats: Sequence[FlatChunk]) -> dict[str, torch.Tensor]:
        """Parameter -> r, an fp64 scalar on the device; the same on all ranks of the stage."""
        places = [place for flat in flats for place in flat.placed if place.spec.weight_decay]
        if not places:
            return {}
        names = dict.fromkeys(place.spec.name for place in places)
        row = {name: index for index, name in enumerate(names)}
        squares = torch.zeros(len(row), 2, dtype=torch.float64, device=flats[0].device)
        for flat in flats:
            for place, low, high in flat.owned():
                if place.spec.weight_decay and place.spec.is_counted:
                    where = slice(low - flat.start, high - flat.start)
                    sums = squares[row[place.spec.name]]
                    sums[0] += square_sum(flat.master[where])
                    sums[1] += square_sum(flat.grad_shard[where])
        self._sum_pieces(squares)
        weight, update = squares.sqrt().unbind(1)
        ratio = weight / update
        if self.config.max_trust_ratio:
            ratio.clamp_(max=self.config.max_trust_ratio)
        ratio = torch.where((weight > 0) & (update > 0), ratio, 1.0)
        return {name: ratio[index] for name, index in row.items()}
