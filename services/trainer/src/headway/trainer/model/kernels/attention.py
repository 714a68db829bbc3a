"""Causal attention of q [B, H, S, D] over k, v [B, G, S, D], within a window and within documents.

On a GPU one call of flash attention does it (``kernels.varlen``). Elsewhere torch's fused kernel
computes each part that is a plain triangle or a band; what lies outside is never computed. Parts
that do not overlap are cut with ``split`` and put together with ``cat``, whose backward touches
each element once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from headway.trainer.model.kernels.varlen import attend_packed, fits
from headway.trainer.model.positions import Borders, Packing

BLOCK = 256
"""Queries of a band at a time: each computes the scores of ``window + BLOCK - 1`` keys."""


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    window: int | None = None,
    borders: Borders | None = None,
    packing: Packing | None = None,
) -> torch.Tensor:
    """[B, H, S, D]: each token sees the ``window`` newest ones of its document, itself included.

    ``packing`` is that of ``borders`` on a GPU.
    """
    if window is not None and window >= q.shape[2]:
        window = None
    is_plain = window is None and borders is None
    if packing is not None and not is_plain and fits(q, k, packing):
        return attend_packed(q, k, v, window=window, packing=packing)
    if borders is None or all(len(row) == 2 for row in borders):
        return _document(q, k, v, window)
    rows = []
    by_row = zip(*(torch.split(whole, 1) for whole in (q, k, v)), strict=True)
    for row, parts in zip(borders, by_row, strict=True):
        lengths = [stop - start for start, stop in pairwise(row)]
        queries, keys, values = (torch.split(part, lengths, 2) for part in parts)
        documents = map(_document, queries, keys, values, [window] * len(lengths))
        rows.append(torch.cat(list(documents), 2))
    return torch.cat(rows)


def _document(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None
) -> torch.Tensor:
    if window is None or window >= q.shape[2]:
        return _fused(q, k, v, None)
    length = q.shape[2]
    starts = range(0, length, BLOCK)
    ranges = [(max(0, start - window + 1), min(start + BLOCK, length)) for start in starts]
    keys, values = _pieces(k, ranges), _pieces(v, ranges)
    out, bands = [], dict[tuple[int, int], torch.Tensor]()
    blocks = torch.split(q, BLOCK, 2)
    for queries, near, far in zip(blocks, keys, values, strict=True):
        band = queries.shape[2], near.shape[2]
        if band not in bands:  # most blocks have the same one, which their backwards share
            bands[band] = _band(*band, window, q)
        out.append(_fused(queries, near, far, bands[band]))
    return torch.cat(out, 2)


def _pieces(x: torch.Tensor, ranges: list[tuple[int, int]]) -> tuple[torch.Tensor, ...]:
    found: tuple[torch.Tensor, ...] = _Pieces.apply(x, ranges)  # type: ignore[no-untyped-call]
    return found


class _Pieces(torch.autograd.Function):
    """Overlapping pieces [start, stop) of the sequence, as views.

    Autograd's own slices would fill a whole tensor with zeros for the gradient of each.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, ranges: list[tuple[int, int]]
    ) -> tuple[torch.Tensor, ...]:
        """x [B, G, S, D]."""
        ctx.ranges, ctx.shape = ranges, x.shape
        return tuple(x[:, :, start:stop] for start, stop in ranges)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The sum of the pieces, in their order."""
        total = grads[0].new_zeros(ctx.shape)
        for (start, stop), grad in zip(ctx.ranges, grads, strict=True):
            total[:, :, start:stop] += grad
        return total, None


def _fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
    )


def _band(queries: int, keys: int, window: int, like: torch.Tensor) -> torch.Tensor:
    """Return what is added to scores [queries, keys]: 0 where a query sees the key, else -inf.

    Queries and keys end at the same token.
    """
    at = torch.arange(keys - queries, keys, device=like.device)[:, None]
    distance = at - torch.arange(keys, device=like.device)
    hidden = (distance < 0) | (distance >= window)
    return torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, -torch.inf)
