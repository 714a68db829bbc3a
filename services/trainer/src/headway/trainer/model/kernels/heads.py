"""Queries, keys and values of a joined tensor and back, with their rotation.

``qkv`` [S, B, G * (Q + 2) * D] holds, for each of G heads of keys and values, its Q heads of
queries, then the key, then the value, so that tensor parallelism splits it between the G.
"""

from __future__ import annotations

import torch
from headway.trainer.model.kernels.output import put

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def split_heads(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, queries: int) -> Three:
    """q [B, G * Q, S, D] and k, v [B, G, S, D] of ``qkv``, with q and k rotated; Q is ``queries``.

    Rotary positions (Su et al., arXiv 2104.09864): the neighbours 2i and 2i + 1 of a head are
    rotated by the angle whose ``cos`` and ``sin`` [S, 1 or B, 1, D / 2] are given.
    """
    pairs = qkv.view(*qkv.shape[:2], -1, queries + 2, cos.shape[-1], 2)  # [S, B, G, Q + 2, D/2, 2]
    q = _rotated(pairs[:, :, :, :queries].flatten(2, 3), cos, sin, qkv.dtype)
    k = _rotated(pairs[:, :, :, queries], cos, sin, qkv.dtype)
    return heads_first(q), heads_first(k), heads_first(pairs[:, :, :, queries + 1].flatten(-2))


def join_heads(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    queries: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The backward of ``split_heads``: three gradients to one [S, B, G * (Q + 2) * D].

    It is written to ``out`` if that is given.
    """
    return put(_joined(*_turned_back(q, k, v, cos, sin), queries), out)


def join_heads_in_parts(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    queries: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``join_heads`` without a compiler."""
    out = _room(q, k, q.dtype) if out is None else out
    return _written(*_turned_back(q, k, v, cos, sin), queries, out)


def split_plain(qkv: torch.Tensor, head_dim: int, queries: int) -> Three:
    """``split_heads`` without a rotation."""
    heads = qkv.view(*qkv.shape[:2], -1, queries + 2, head_dim)
    q, k, v = heads[:, :, :, :queries].flatten(2, 3), heads[..., queries, :], heads[..., -1, :]
    return heads_first(q), heads_first(k), heads_first(v)


def join_plain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    queries: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The backward of ``split_plain``."""
    return put(_joined(*_rows(q, k, v), queries), out)


def join_plain_in_parts(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    queries: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``join_plain`` without a compiler."""
    out = _room(q, k, q.dtype) if out is None else out
    return _written(*_rows(q, k, v), queries, out)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [B, H, S, D] rotated, by torch operations that autograd follows."""
    cos, sin = (t.permute(1, 2, 0, 3) for t in (cos, sin))  # [1 or B, 1, S, D / 2]
    return _rotated(x.reshape(*x.shape[:-1], -1, 2), cos, sin, x.dtype)


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """[S, B, H, D] as [B, H, S, D] for attention.

    The kernels of GPUs take any strides but the last, and give their output those of q, so there
    it is a view, and the output is one of [S, B, H, D] memory. A CPU's is faster with each head's
    rows together.
    """
    if x.device.type == "cpu":
        return x.permute(1, 2, 0, 3).contiguous()
    return x.contiguous().permute(1, 2, 0, 3)


def _rotated(
    pairs: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """[..., D / 2, 2] to [..., D], rotated in the type of ``cos``."""
    first, second = pairs[..., 0].to(cos.dtype), pairs[..., 1].to(cos.dtype)
    turned = (first * cos - second * sin, first * sin + second * cos)
    return torch.stack(turned, -1).flatten(-2).to(dtype)


def _rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Three:
    """[B, H, S, D] as [S, B, H, D]."""
    return q.permute(2, 0, 1, 3), k.permute(2, 0, 1, 3), v.permute(2, 0, 1, 3)


def _turned_back(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> Three:
    """Their rows, with the rotation of q and k undone: the map is orthogonal."""
    q, k, v = _rows(q, k, v)
    q, k = (_rotated(t.reshape(*t.shape[:3], -1, 2), cos, -sin, t.dtype) for t in (q, k))
    return q, k, v


def _joined(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, queries: int) -> torch.Tensor:
    """Rows [S, B, G * Q, D] and [S, B, G, D] to [S, B, G * (Q + 2) * D].

    For GPUs torch's compiler makes this and what is before it one kernel that writes each element
    once. Of ``_written`` it would make one that also reads what it overwrites (torch 2.13).
    """
    grouped = q.reshape(*q.shape[:2], -1, queries, q.shape[-1])
    return torch.cat((grouped, k[:, :, :, None], v[:, :, :, None]), 3).flatten(2)


def _written(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, queries: int, out: torch.Tensor
) -> torch.Tensor:
    """``out`` with what ``_joined`` returns, each part written straight to its place."""
    heads = out.view(*k.shape[:3], queries + 2, -1)
    heads[..., :queries, :].copy_(q.view(*k.shape[:3], queries, -1))
    heads[..., queries, :].copy_(k)
    heads[..., queries + 1, :].copy_(v)
    return out


def _room(q: torch.Tensor, k: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Memory for q, k and v [B, H, S, D] joined."""
    batch, heads, length, head_dim = q.shape
    return q.new_empty((length, batch, (heads + 2 * k.shape[1]) * head_dim), dtype=dtype)


def split_heads_on_cpu(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, queries: int
) -> Three:
    """Do ``split_heads`` as one complex product over whole contiguous rows, with factor 1 for v.

    Torch without a compiler takes 40 times as long on a CPU for strided halves.
    """
    half = cos.shape[-1]
    if any(stride % 2 for stride in qkv.stride()[:2]):  # pairs are read as complex numbers
        qkv = qkv.contiguous()
    wide = qkv.to(cos.dtype).view(*qkv.shape[:2], -1, (queries + 2) * half, 2)
    turned = torch.view_as_real(torch.view_as_complex(wide) * _factors(cos, sin, queries))
    heads = turned.to(qkv.dtype).view(*qkv.shape[:2], -1, queries + 2, 2 * half)
    if queries > 1:
        return split_plain(heads.flatten(2), 2 * half, queries)
    # The attention kernel is faster with each head's rows together; one copy gives all three.
    q, k, v = heads.permute(3, 1, 2, 0, 4).contiguous().unbind()
    return q, k, v


def join_heads_on_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    queries: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``join_heads``, in the same way and in place."""
    wide = _written(*_rows(q, k, v), queries, _room(q, k, cos.dtype))
    pairs = wide.view(*wide.shape[:2], k.shape[1], -1, 2)
    torch.view_as_complex(pairs).mul_(_factors(cos, -sin, queries))
    return wide.to(q.dtype) if out is None else out.copy_(wide)


def _factors(cos: torch.Tensor, sin: torch.Tensor, queries: int) -> torch.Tensor:
    turn = torch.complex(cos, sin)
    return torch.cat((*[turn] * (queries + 1), torch.ones_like(turn)), -1)
