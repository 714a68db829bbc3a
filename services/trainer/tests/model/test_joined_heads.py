"""Gradients of q, k and v have the same bits in their joined tensor, whichever way they got there.

A compiler gets a ``cat``; without one each part is written to its place; on a CPU the rotation
happens there.
"""

from __future__ import annotations

import pytest
import torch
from headway.trainer.model.kernels.heads import (
    Three,
    join_heads,
    join_heads_in_parts,
    join_heads_on_cpu,
    join_plain,
    join_plain_in_parts,
)

SEQ, BATCH, HEADS = 37, 2, 3
TYPES = [torch.float32, torch.bfloat16, torch.float64]


def gradients(queries: int, head_dim: int, dtype: torch.dtype, *, as_on_gpus: bool) -> Three:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(BATCH, heads, SEQ, head_dim, generator=draw).to(dtype)
        for heads in (HEADS * queries, HEADS, HEADS)
    )
    if as_on_gpus:
        q, k, v = (t.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for t in (q, k, v))
    return q, k, v


def rope(head_dim: int, dtype: torch.dtype, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (SEQ, rows, 1, head_dim // 2)
    angle = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return angle.cos().to(wide), angle.sin().to(wide)


def complex_product(
    grads: Three, cos: torch.Tensor, sin: torch.Tensor, queries: int
) -> torch.Tensor:
    """What ``join_heads_on_cpu`` does in place, one operation at a time."""
    joined = join_plain(*grads, queries).to(cos.dtype)
    pairs = joined.view(SEQ, BATCH, HEADS, queries + 2, -1, 2)
    turn = torch.complex(cos, -sin).unsqueeze(-2)
    factors = torch.cat([*[turn] * (queries + 1), torch.ones_like(turn)], -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs) * factors)
    return turned.flatten(2).to(grads[0].dtype)


@pytest.mark.parametrize("as_on_gpus", [False, True], ids=["cpu memory", "gpu memory"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("queries", "head_dim"), [(1, 8), (2, 6), (3, 64)])
def test_the_bits_are_those_of_a_cat(
    queries: int, head_dim: int, dtype: torch.dtype, as_on_gpus: bool
) -> None:
    grads = gradients(queries, head_dim, dtype, as_on_gpus=as_on_gpus)
    width = HEADS * (queries + 2) * head_dim
    for rows in (1, BATCH):
        cos, sin = rope(head_dim, dtype, rows)
        for out in (None, torch.zeros(SEQ, BATCH, 8 + width, dtype=dtype)[..., 8:]):
            plain = join_plain_in_parts(*grads, queries, out)
            assert out is None or plain is out
            assert torch.equal(plain, join_plain(*grads, queries))
            in_parts = join_heads_in_parts(*grads, cos, sin, queries, out)
            assert torch.equal(in_parts, join_heads(*grads, cos, sin, queries))
            on_cpu = join_heads_on_cpu(*grads, cos, sin, queries, out)
            assert on_cpu.dtype is dtype
            assert torch.equal(on_cpu, complex_product(grads, cos, sin, queries))


def test_wider_gradients_are_rounded_once_into_a_given_tensor() -> None:
    grads = gradients(2, 8, torch.float32, as_on_gpus=False)  # of a kernel that takes no bf16
    cos, sin = rope(8, torch.float32, 1)
    out = torch.empty(SEQ, BATCH, HEADS * 4 * 8, dtype=torch.bfloat16)
    wanted = complex_product(grads, cos, sin, 2).bfloat16()
    assert torch.equal(join_heads_on_cpu(*grads, cos, sin, 2, out), wanted)
