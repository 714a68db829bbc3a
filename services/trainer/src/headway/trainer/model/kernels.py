"""The small operations between matrix products, as pure functions that torch can compile.

Each takes and returns tensors, without collectives, autograd or parameters, so that
``train.compile`` can fuse each one alone (``compiled``) and a library's kernel can replace it.
Shapes: S = seq, B = micro-batch, H = local heads, D = head_dim, W = width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F

_aten = torch.ops.aten
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> Three:
    """``(y, mean, rstd)`` over the last dimension (Ba et al., arXiv 1607.06450). Statistics and
    weights are in fp32 or better, y in the type of x."""
    wide = x.to(weight.dtype)  # a compiler would round the statistics of a narrow x
    y, mean, rstd = torch.native_layer_norm(wide, x.shape[-1:], weight, bias, eps)
    return y.to(x.dtype), mean, rstd


def layer_norm_on_cpu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> Three:
    """``layer_norm`` by torch's own kernel, which takes weights of another type on a CPU only."""
    return torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)


def layer_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> Three:
    """Gradients of x (its type), weight and bias (theirs).

    Computed in the type of the weight on CPUs too: the kernel for a bf16 x adds up the gradients of
    weight and bias in bf16 (measured: 0.7 % off after 64 tokens, 9 % after 8,192).
    """
    grad_x, grad_weight, grad_bias = _aten.native_layer_norm_backward(
        grad.to(weight.dtype),
        x.to(weight.dtype),
        x.shape[-1:],
        mean,
        rstd,
        weight,
        bias,
        [True, True, True],
    )
    return grad_x.to(x.dtype), grad_weight, grad_bias


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU in its exact form (Hendrycks and Gimpel, arXiv 1606.08415); its tanh form takes four
    times as long on a CPU (2.9 against 0.7 ms for 0.8M elements)."""
    return F.gelu(x)


def gelu_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Gradient of x."""
    return _aten.gelu_backward(grad, x)  # type: ignore[no-any-return]


def split_heads(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Three:
    """q, k, v, each [B, H, S, D], of qkv [S, B, H * 3 * D], with q and k rotated.

    Rotary positions (Su et al., arXiv 2104.09864): the neighbours 2i and 2i + 1 of a head are
    rotated by the angle whose ``cos`` and ``sin`` [S, 1, 1, D / 2] are given.
    """
    parts = qkv.view(*qkv.shape[:2], -1, 3, cos.shape[-1], 2)  # [S, B, H, 3, D/2, 2]
    q, k = (_rotated(parts[:, :, :, index], cos, sin, qkv.dtype) for index in (0, 1))
    v = parts[:, :, :, 2].flatten(-2)
    return heads_first(q), heads_first(k), heads_first(v)


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """[S, B, H, D] as [B, H, S, D] for attention.

    The kernels of GPUs take any strides but the last, and give their output those of q, so there
    it is a view, and the output is one of [S, B, H, D] memory. A CPU's is faster with each head's
    rows together.
    """
    if x.device.type == "cpu":
        return x.permute(1, 2, 0, 3).contiguous()
    return x.contiguous().permute(1, 2, 0, 3)


def join_heads(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """The backward of ``split_heads``: gradients [B, H, S, D] to one [S, B, H * 3 * D]."""
    rows = [t.permute(2, 0, 1, 3) for t in (q, k, v)]
    back = [
        _rotated(t.reshape(*t.shape[:3], -1, 2), cos, -sin, q.dtype)  # the map is orthogonal
        for t in rows[:2]
    ]
    return torch.stack((*back, rows[2]), 3).flatten(2)


def _rotated(
    pairs: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """[..., D / 2, 2] to [..., D], rotated in the type of ``cos``."""
    first, second = pairs[..., 0].to(cos.dtype), pairs[..., 1].to(cos.dtype)
    turned = (first * cos - second * sin, first * sin + second * cos)
    return torch.stack(turned, -1).flatten(-2).to(dtype)


def split_heads_on_cpu(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Three:
    """``split_heads`` as one complex product over whole contiguous rows, with factor 1 for v: torch
    without a compiler takes 40 times as long on a CPU for strided halves."""
    width = cos.shape[-1]
    wide = qkv.to(cos.dtype).view(*qkv.shape[:2], -1, 3 * width, 2)
    turned = torch.view_as_real(torch.view_as_complex(wide) * _factors(cos, sin))
    # The attention kernel is faster with each head's rows together; one copy gives all three.
    packed = turned.to(qkv.dtype).view(*qkv.shape[:2], -1, 3, 2 * width).permute(3, 1, 2, 0, 4)
    q, k, v = packed.contiguous().unbind()
    return q, k, v


def join_heads_on_cpu(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """``join_heads``, in the same way."""
    joined = torch.stack([t.permute(2, 0, 1, 3) for t in (q, k, v)], 3)  # [S, B, H, 3, D]
    wide = joined.to(cos.dtype).view(*joined.shape[:3], -1, 2)
    turned = torch.view_as_real(torch.view_as_complex(wide) * _factors(cos, -sin))
    return turned.to(q.dtype).flatten(2)


def _factors(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    turn = torch.complex(cos, sin)
    return torch.cat((turn, turn, torch.ones_like(turn)), -1)


def softmax_rows(logits: torch.Tensor, dtype: torch.dtype) -> Three:
    """``(exponentials, highest, total)`` of rows [N, V]: exp(logits - highest) in ``dtype``, and
    each row's highest logit and sum of exponentials, [N]."""
    wide = logits.to(dtype)
    highest = wide.amax(-1)
    exponentials = (wide - highest[:, None]).exp()
    return exponentials, highest, exponentials.sum(-1)


@dataclass(frozen=True)
class Kernels:
    """One implementation of each operation."""

    layer_norm: Callable[..., Three] = layer_norm
    layer_norm_backward: Callable[..., Three] = layer_norm_backward
    gelu: Callable[[torch.Tensor], torch.Tensor] = gelu
    gelu_backward: Callable[..., torch.Tensor] = gelu_backward
    split_heads: Callable[..., Three] = split_heads
    join_heads: Callable[..., torch.Tensor] = join_heads
    softmax_rows: Callable[..., Three] = softmax_rows


_watchers: list[Callable[[], object]] = []


@contextmanager
def watching(watcher: Callable[[], object]) -> Iterator[None]:
    """Call ``watcher`` before each compiled operation in the block, any of which may take seconds
    to compile."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def _watched(operation: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        for watcher in _watchers:
            watcher()
        return operation(*args)

    return call


ON_CPU = Kernels(
    layer_norm=layer_norm_on_cpu,
    split_heads=split_heads_on_cpu,
    join_heads=join_heads_on_cpu,
)


def kernels(device: torch.device, *, compile_each: bool) -> Kernels:
    """The operations for ``device``; ``compile_each`` compiles every one for the shapes it meets
    (``train.compile``), which takes a C++ compiler and some seconds at the first step."""
    if compile_each:
        # a pool of compiler processes would outlive a worker that is killed
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        chosen = Kernels()
        return Kernels(
            **{
                field.name: _watched(
                    torch.compile(getattr(chosen, field.name), dynamic=False, fullgraph=True)
                )
                for field in fields(Kernels)
            }
        )
    return ON_CPU if device.type == "cpu" else Kernels()
