"""Cross-entropy over a split vocabulary, with its gradient computed in the same pass.

Shapes: N = tokens, V = this rank's piece of the vocabulary. The sum over the vocabulary is
taken in fp32 (fp64 in fp64 runs), one block of rows at a time, so that bf16 logits never
need a whole fp32 copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from headway.trainer.parallel.tensor import TensorParallel

BLOCK_ELEMENTS = 1 << 19
"""Elements of one block of rows on a CPU: 2 MiB in fp32, which fits a core's cache. A GPU uses 64
times as many, because there a launch costs more than a pass."""


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    mask: torch.Tensor,
    tp: TensorParallel,
    *,
    with_grad: bool,
) -> torch.Tensor:
    """Sum of ``mask * -log softmax(logits)[label]`` over N, an fp64 scalar, equal on all tp ranks.

    ``logits`` [N, V] of this rank are overwritten: with ``with_grad`` by the gradient of the sum.
    Two small all-reduces combine the pieces (arXiv 1909.08053, section 3).

    Args:
        labels: [N] int64, positions in the whole vocabulary, checked by the dataloader; any value
            where ``mask`` is 0.
        mask: [N] weight of each token, in the type in which exponentials are summed.
    """
    mine, target = _targets(logits, labels, tp)
    highest = logits.amax(-1).to(mask.dtype)
    tp.comm.all_reduce(highest, "max").wait()
    sums = torch.empty((2, len(logits)), dtype=mask.dtype, device=logits.device)
    sums[1] = torch.where(mine, logits.gather(1, target[:, None])[:, 0].to(mask.dtype), 0.0)
    for rows in _blocks(logits):
        exponentials = logits[rows].to(mask.dtype).sub_(highest[rows, None]).exp_()
        torch.sum(exponentials, -1, out=sums[0, rows])
        if with_grad:
            if tp.size == 1:  # the sum is complete, so scale before rounding
                exponentials.mul_((mask[rows] / sums[0, rows])[:, None])
            logits[rows].copy_(exponentials)
    tp.comm.all_reduce(sums.view(-1)).wait()
    log_likelihood = sums[1] - highest - sums[0].log()
    if with_grad:
        if tp.size > 1:
            logits.mul_((mask / sums[0])[:, None])
        # p - 1 without the rounding of p
        at_label = (mask * log_likelihood.expm1()).to(logits.dtype)
        rows_mine = mine.nonzero()[:, 0]
        logits[rows_mine, target[rows_mine]] = at_label[rows_mine]
    return -(log_likelihood * mask).sum(dtype=torch.float64)


def _targets(
    logits: torch.Tensor, labels: torch.Tensor, tp: TensorParallel
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tokens' labels are in this rank's piece, and where; 0 for the others."""
    local = labels - tp.rank * logits.shape[1]
    mine = (local >= 0) & (local < logits.shape[1])
    return mine, torch.where(mine, local, 0)


def _blocks(logits: torch.Tensor) -> Iterator[slice]:
    elements = BLOCK_ELEMENTS * (1 if logits.device.type == "cpu" else 64)
    step = max(1, elements // logits.shape[1])
    for start in range(0, len(logits), step):
        yield slice(start, min(start + step, len(logits)))
