"""Causal attention of q [B, H, S, D] over k, v [B, G, S, D], within a window and within documents.

torch's fused kernel computes each part that is a plain triangle or a band; what lies outside is
never computed. Parts are cut with ``split`` and put together with ``cat``, whose backward touches
each element once (that of a slice fills a whole tensor with zeros).
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from headway.trainer.model.positions import Borders

BLOCK = 256
"""Most queries of a band at a time: a band computes ``window + block`` keys for each query."""


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    window: int | None = None,
    borders: Borders | None = None,
) -> torch.Tensor:
    """[B, H, S, D]: each token sees the ``window`` newest ones of its document, itself included."""
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
    size = min(window, BLOCK)
    num_before = -(-(window - 1) // size)  # blocks of keys that the first query of a block sees
    keys, values = torch.split(k, size, 2), torch.split(v, size, 2)
    out = []
    for number, queries in enumerate(torch.split(q, size, 2)):
        seen = slice(max(0, number - num_before), number + 1)
        near = torch.cat(keys[seen], 2), torch.cat(values[seen], 2)
        offset = (number - seen.start) * size
        out.append(_fused(queries, *near, _band(queries.shape[2], offset, window, q.device)))
    return torch.cat(out, 2)


def _fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
    )


def _band(queries: int, offset: int, window: int, device: torch.device) -> torch.Tensor:
    """Which keys [queries, offset + queries] each query sees; query 0 stands at key ``offset``."""
    at = torch.arange(offset, offset + queries, device=device)[:, None]
    distance = at - torch.arange(offset + queries, device=device)
    return (distance >= 0) & (distance < window)
