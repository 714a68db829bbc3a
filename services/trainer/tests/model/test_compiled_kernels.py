"""Every leaf of the model compiles whole, and gives what the plain one gives."""

from __future__ import annotations

import os
import shutil
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
import torch
from headway.trainer.config import ModelConfig
from headway.trainer.model.kernels import ON_CPU, UNCOMPILED, Kernels, kernels
from headway.trainer.model.positions import Places

SEQ, BATCH, HEADS, HEAD_DIM, WIDTH, WORDS = 16, 2, 3, 8, 48, 96
TOLERANCE = 1e-6
"""Relative to the norm of each result in its own type: sums are taken in another order, in fp32.
A bf16 result differs only where both are next to the middle between two numbers."""
BF16_TOLERANCE = 1e-3
BF16_ROUNDING = 4e-3

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="torch.compile needs a C++ compiler"
)


@cache
def compiled() -> Kernels:
    return kernels(torch.device("cpu"), compile_each=True)


def arguments(name: str, dtype: torch.dtype) -> tuple[Any, ...]:
    draw = torch.Generator().manual_seed(0)

    def some(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(kind)

    x, grad = some(SEQ, BATCH, WIDTH), some(SEQ, BATCH, WIDTH)
    scales = some(WIDTH, kind=torch.float32), some(WIDTH, kind=torch.float32)
    model = ModelConfig(hidden=HEADS * HEAD_DIM, heads=HEADS, seq_len=SEQ).architecture
    rope = Places(model, torch.float32, torch.device("cpu")).of(SEQ).rope
    assert rope is not None
    qkv = some(SEQ, BATCH, HEADS * 4 * HEAD_DIM)  # two queries for each key
    q, k, v = (some(BATCH, heads, SEQ, HEAD_DIM) for heads in (2 * HEADS, HEADS, HEADS))
    match name:
        case "layer_norm":
            return (x, *scales, 1e-5)
        case "layer_norm_backward":
            _, mean, rstd = Kernels().layer_norm(x, *scales, 1e-5)
            return (grad, x, mean, rstd, *scales)
        case "rms_norm":
            return (x, scales[0], 1e-5)
        case "rms_norm_backward":
            return (grad, x, Kernels().rms_norm(x, scales[0], 1e-5)[1], scales[0])
        case "gelu" | "gelu_tanh" | "swiglu":
            return (x,)
        case "gelu_backward" | "gelu_tanh_backward":
            return (grad, x)
        case "swiglu_backward":
            return (grad[..., : WIDTH // 2], x)
        case "split_heads":
            return (qkv, *rope, 2)
        case "join_heads":
            return (q, k, v, *rope, 2)
        case "split_plain":
            return (qkv, HEAD_DIM, 2)
        case "join_plain":
            return (q, k, v, 2)
        case "softmax_sums" | "exponentials_in_place":
            return (some(SEQ, WORDS), torch.float32)
        case "softmax_in_place":
            mask = torch.rand(SEQ, generator=draw)
            return (some(SEQ, WORDS), mask, torch.float32)
    raise AssertionError(f"no arguments for {name}: add a case for the new leaf")


def tensors(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def optional(name: str, given: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    """The last argument that a block gives or leaves out; () if the leaf has none."""
    if name in ("layer_norm_backward", "rms_norm_backward"):
        return (torch.randn(given[1].shape, generator=torch.Generator().manual_seed(1)).to(dtype),)
    widths = {"join_heads": HEADS * 4 * HEAD_DIM, "join_plain": HEADS * 4 * HEAD_DIM}
    if name in widths or name.endswith("lu_backward") or name == "gelu_tanh_backward":
        wide = torch.zeros(SEQ, BATCH, 8 + widths.get(name, WIDTH), dtype=dtype)
        return (wide[..., 8:],)  # a part of a wider tensor
    return ()


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch about itself
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", [field.name for field in fields(Kernels)])
def test_a_leaf_compiles_whole_and_equals_the_plain_one(name: str, dtype: torch.dtype) -> None:
    more = optional(name, arguments(name, dtype), dtype)
    for with_optional in (False, True)[: 1 + bool(more)]:
        found = results(compiled(), name, dtype, with_optional=with_optional)
        for plain in (Kernels(), UNCOMPILED, ON_CPU):
            wanted = results(plain, name, dtype, with_optional=with_optional)
            for one, other in zip(found, wanted, strict=True):
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                bound = BF16_TOLERANCE if one.dtype is torch.bfloat16 else TOLERANCE
                if "swiglu" in name and one.dtype is torch.bfloat16:
                    bound = BF16_ROUNDING  # without a compiler silu is rounded before the product
                distance = (one.double() - other.double()).norm()
                assert distance <= bound * other.double().norm()


def results(
    made: Kernels, name: str, dtype: torch.dtype, *, with_optional: bool
) -> list[torch.Tensor]:
    """What a leaf returns, and its arguments afterwards, since some are overwritten."""
    given = arguments(name, dtype)
    if with_optional:
        given = (*given, *optional(name, given, dtype))
    found = getattr(made, name)(*given)
    return [*tensors(found), *(one for one in given if isinstance(one, torch.Tensor))]


@pytest.mark.parametrize("made", [Kernels(), ON_CPU], ids=["on gpu", "on cpu"])
def test_attention_gets_heads_as_the_fused_kernels_take_them(made: Kernels) -> None:
    """cuDNN and flash want the last stride 1 and pointers aligned to 16 bytes (torch's
    sdp_utils.cpp and cuDNN's SDPA)."""
    given = arguments("split_heads", torch.bfloat16)
    for part, heads in zip(made.split_heads(*given), (2 * HEADS, HEADS, HEADS), strict=True):
        assert part.shape == (BATCH, heads, SEQ, HEAD_DIM)
        assert part.stride(-1) == 1
        assert all(stride * part.element_size() % 16 == 0 for stride in part.stride()[:-1])
        assert part.storage_offset() * part.element_size() % 16 == 0
