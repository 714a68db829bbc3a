"""Cross-entropy over a split vocabulary, with its gradient computed in the same pass.

Shapes: N = tokens, V = this rank's piece of the vocabulary. Sums over the vocabulary are taken in
fp32 (fp64 in fp64 runs), one block of rows at a time, so that bf16 logits never need a whole fp32
copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from headway.trainer.model.kernels import Kernels
from headway.trainer.parallel.tensor import TensorParallel

BLOCK_ELEMENTS = 1 << 19
"""Elements of one block of rows on a CPU: 2 MiB in fp32, which fits a core's cache. A GPU uses 256
times as many, because there a launch costs more than a pass."""


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    mask: torch.Tensor,
    tp: TensorParallel,
    kernels: Kernels,
    *,
    first: int,
    with_grad: bool,
) -> torch.Tensor:
    """Sum of ``mask * -log softmax(logits)[label]`` over N, an fp64 scalar, equal on all tp ranks.

    ``logits`` [N, V] of this rank are overwritten: with ``with_grad`` by the gradient of the sum.
    One small all-gather combines the pieces (compare arXiv 1909.08053, section 3).

    Args:
        labels: [N] int64, positions in the whole vocabulary, checked by the dataloader; any value
            where ``mask`` is 0.
        first: this rank's first token of the vocabulary.
        mask: [N] weight of each token, in the type in which exponentials are summed.
    """
    mine, target = _targets(logits, labels, first)
    at_label = logits.gather(1, target)[:, 0].to(mask.dtype)
    highest, total = torch.empty_like(mask), torch.empty_like(mask)
    for rows in _blocks(logits):
        block = logits[rows]
        if not with_grad:
            highest[rows], total[rows] = kernels.softmax_sums(block, mask.dtype)
        elif tp.size == 1:  # the sum is complete, so scale before rounding
            highest[rows], total[rows] = kernels.softmax_in_place(block, mask[rows], mask.dtype)
        else:
            highest[rows], total[rows] = kernels.exponentials_in_place(block, mask.dtype)
    if tp.size > 1:
        local = highest
        at_label, highest, total = _over_ranks(at_label, mine, highest, total, tp)
        if with_grad:
            logits.mul_((mask * (local - highest).exp() / total)[:, None])
    log_likelihood = at_label - highest - total.log()
    if with_grad:
        # p - 1 without the rounding of p
        gradient = (mask * log_likelihood.expm1()).to(logits.dtype)[:, None]
        # index_put_ touches these elements only; scatter_ takes as long as a pass over all
        each = torch.arange(len(logits), device=logits.device)[:, None]
        own = torch.where(mine, gradient, logits.gather(1, target))
        logits.index_put_((each, target), own)
    return -(log_likelihood * mask).sum(dtype=torch.float64)


def _over_ranks(
    at_label: torch.Tensor,
    mine: torch.Tensor,
    highest: torch.Tensor,
    total: torch.Tensor,
    tp: TensorParallel,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The label's logit, the highest one and the sum of exponentials over the whole vocabulary."""
    at_label = torch.where(mine[:, 0], at_label, 0.0)
    piece = torch.stack((at_label, highest, total))[None]
    at_labels, highs, totals = tp.join(piece).wait().unbind(1)  # [tp, N] each
    most = highs.amax(0)
    return at_labels.sum(0), most, (totals * (highs - most).exp()).sum(0)


def _targets(
    logits: torch.Tensor, labels: torch.Tensor, first: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tokens' labels are in this rank's piece, and where; 0 for the others. [N, 1] each."""
    local = labels[:, None] - first
    mine = (local >= 0) & (local < logits.shape[1])
    return mine, torch.where(mine, local, 0)


def _blocks(logits: torch.Tensor) -> Iterator[slice]:
    elements = BLOCK_ELEMENTS * (1 if logits.device.type == "cpu" else 256)
    step = max(1, elements // logits.shape[1])
    for start in range(0, len(logits), step):
        yield slice(start, min(start + step, len(logits)))
