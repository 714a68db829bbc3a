"""Sums of exponentials over the vocabulary, and the exponentials in the place of the logits."""

from __future__ import annotations

import torch

Two = tuple[torch.Tensor, torch.Tensor]


def softmax_sums(logits: torch.Tensor, dtype: torch.dtype) -> Two:
    """Return each row's highest logit and its sum of exp(logit - highest), [N] in ``dtype``."""
    highest, _, total = _exponentials(logits, dtype)
    return highest, total


def softmax_in_place(logits: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype) -> Two:
    """``softmax_sums``, and overwrite logits [N, V] by mask [N] * softmax, rounded once.

    Exponentials are computed twice, as a fused kernel would: torch's compiler fails with a KeyError
    where the first ones are used again (2.13).
    """
    highest, total = softmax_sums(logits, dtype)
    exponentials = (logits.to(dtype) - highest[:, None]).exp_()
    logits.copy_(exponentials.mul_((mask / total)[:, None]))
    return highest, total


def softmax_in_place_on_cpu(logits: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype) -> Two:
    """``softmax_in_place``, with the exponentials computed once."""
    highest, exponentials, total = _exponentials(logits, dtype)
    logits.copy_(exponentials.mul_((mask / total)[:, None]))
    return highest, total


def exponentials_in_place(logits: torch.Tensor, dtype: torch.dtype) -> Two:
    """``softmax_sums``, and overwrite logits [N, V] by exp(logit - highest)."""
    highest, exponentials, total = _exponentials(logits, dtype)
    logits.copy_(exponentials)
    return highest, total


def _exponentials(
    logits: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    wide = logits.to(dtype)
    highest = wide.amax(-1)
    exponentials = (wide - highest[:, None]).exp_()
    return highest, exponentials, exponentials.sum(-1)
