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
    out, bands = [], dict[tuple[int, int], torch.Tensor]()
    for number, queries in enumerate(torch.split(q, size, 2)):
        seen = slice(max(0, number - num_before), number + 1)
        band = queries.shape[2], (number - seen.start) * size
        if band not in bands:  # most blocks have the same one, which their backwards share
            bands[band] = _band(*band, window, q)
        near = torch.cat(keys[seen], 2), torch.cat(values[seen], 2)
        out.append(_fused(queries, *near, bands[band]))
    return torch.cat(out, 2)


def _fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
    )


def _band(queries: int, offset: int, window: int, like: torch.Tensor) -> torch.Tensor:
    """What is added to scores [queries, offset + queries]: 0 where a query sees the key, else -inf.
    Query 0 stands at key ``offset``."""
    at = torch.arange(offset, offset + queries, device=like.device)[:, None]
    distance = at - torch.arange(offset + queries, device=like.device)
    hidden = (distance < 0) | (distance >= window)
    return torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, -torch.inf)
