"""The mathematics of validation and sampling; the pipeline runs the forwards."""

from __future__ import annotations

import math

import torch
from headway.trainer.parallel.tensor import TensorParallel


def mean_loss(loss_sum: float, num_tokens: float) -> float:
    """Mean loss per counted token, in nats; NaN without tokens."""
    return loss_sum / num_tokens if num_tokens else math.nan


@torch.no_grad()
def sample_next(
    logits: torch.Tensor, tp: TensorParallel, *, temperature: float = 0.0, uniform: float = 0.0
) -> torch.Tensor:
    """The next token of each sequence, [micro_batch] int64, the same on all tp ranks.

    Args:
        logits: this rank's piece [micro_batch, vocab/tp], as ``Chunk.logits`` returns it.
        temperature: 0 takes the likeliest token, the lowest number among equals.
        uniform: a number in [0, 1) from the caller's generator, equal on all ranks; the sample is the token
            where the cumulated probability passes it.
    """
    whole = gather_vocabulary(logits, tp).double()
    if temperature <= 0.0:
        return whole.argmax(-1)
    cumulated = torch.softmax(whole / temperature, -1).cumsum(-1)
    threshold = (cumulated[:, -1:] * uniform).contiguous()
    return torch.searchsorted(cumulated, threshold, right=True)[:, 0].clamp_(max=whole.shape[1] - 1)


def gather_vocabulary(logits: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Join [micro_batch, vocab/tp] pieces to [micro_batch, vocab]."""
    pieces = tp.gather(logits[None].contiguous()).wait()  # [tp, micro_batch, vocab/tp]
    return pieces.permute(1, 0, 2).flatten(1)
