"""Windows and documents in one call of flash attention over packed sequences, on GPUs.

``torch.nn.attention.varlen`` takes where the documents begin and how far a token sees, where
``scaled_dot_product_attention`` takes a mask, for which flash attention is not used, and one
document per call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import torch
from headway.trainer.model.positions import Packing

MIN_MEAN_LENGTH = 32
"""Tokens of a document on average, below which they are not packed: for each document the kernel's
backward adds 128 rows of fp32 to its buffer of [tokens, H, D] (mha_varlen_bwd in torch's
flash_api.cpp)."""


def fits(q: torch.Tensor, k: torch.Tensor, packing: Packing) -> bool:
    """Whether ``attend_packed`` can take q [B, H, S, D] and k [B, G, S, D].

    It depends on the device, the type, the shapes and torch's version, and on the documents only
    where they are tiny: the first launch of a kernel waits until the device is idle, so that what a
    rehearsal did must be what the steps do.
    """
    return (
        q.dtype in (torch.bfloat16, torch.float16)
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 256
        and packing.num_documents * MIN_MEAN_LENGTH <= q.shape[0] * q.shape[2]
        and _has_flash(q.device)
        and (q.shape[1] == k.shape[1] or _takes_groups())
    )


def attend_packed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    window: int | None,
    packing: Packing,
) -> torch.Tensor:
    """Return what ``kernels.attention.attend`` does, [B, H, S, D].

    Several documents follow each other, row behind row, which copies where B > 1. Rows without
    borders are one document of B * H heads, [S, B * H, D], which is how a GPU holds them.
    """
    batch, heads, length, head_dim = q.shape
    if packing.num_documents > 1:
        rows = [t.transpose(1, 2).flatten(0, 1) for t in (q, k, v)]
    else:
        rows = [t.permute(2, 0, 1, 3).flatten(1, 2) for t in (q, k, v)]
    # At least the window: the kernel for windows is another one, to be used in each step.
    longest = max(packing.longest, window or 2)
    out: torch.Tensor = _varlen_attn()(
        *rows,
        packing.starts,
        packing.starts,
        longest,
        longest,
        window_size=(-1 if window is None else window - 1, 0),
        **({} if heads == k.shape[1] else {"enable_gqa": True}),
    )
    if packing.num_documents > 1:
        return out.view(batch, length, heads, head_dim).transpose(1, 2)
    return out.view(length, batch, heads, head_dim).permute(1, 2, 0, 3)


@cache
def _varlen_attn() -> Callable[..., Any]:
    from torch.nn.attention.varlen import varlen_attn  # imports torch's compiler: 1 s

    return varlen_attn


@cache
def _takes_groups() -> bool:
    """Whether several heads of queries may share one of keys: from torch 2.12 on."""
    return "enable_gqa" in signature(_varlen_attn()).parameters


@cache
def _has_flash(device: torch.device) -> bool:
    """Whether torch was built with flash attention and ``device`` is a GPU from Ampere on."""
    return (
        device.type == "cuda"
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )
