"""Matrix products in the compute type, with the fastest kernel of this machine.

A CPU without AVX-512 has no bf16 matrix kernel: torch falls back to scalar loops, 10 to 100 times
slower than fp32 (measured on an AVX2 EPYC: 6 against 65 GFLOP/s). There, bf16 operands are
widened, multiplied in fp32 and the product is rounded to bf16: what a bf16 kernel with fp32 sums
computes, at fp32 speed.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F


@cache
def kernel_dtype(dtype: torch.dtype, device_type: str) -> torch.dtype:
    """The type in which to multiply ``dtype`` on ``device_type``: itself, or
    fp32 if that is faster."""
    if dtype is torch.bfloat16 and device_type == "cpu" and not _has_bf16_kernels():
        return torch.float32
    return dtype


def _has_bf16_kernels() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def widen(x: torch.Tensor) -> torch.Tensor:
    """``x`` in its kernel type; ``x`` itself if that is its type."""
    return x.to(kernel_dtype(x.dtype, x.device.type))


def times_transposed(
    x: torch.Tensor, weight: torch.Tensor, *, rounded: bool = True
) -> torch.Tensor:
    """x[..., I] @ weight[O, I]^T in the type of ``x``; in the kernel's type if not ``rounded``."""
    product = F.linear(widen(x), widen(weight))
    return product.to(x.dtype) if rounded else product


def times(grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """grad[..., O] @ weight[O, I] in the type of ``weight``."""
    return (widen(grad) @ widen(weight)).to(weight.dtype)


def accumulate(
    total: torch.Tensor, grad: torch.Tensor, x: torch.Tensor, scale: float = 1.0
) -> None:
    """total[O, I] += scale * grad[..., O]^T @ x[..., I], summed in the master type."""
    grad_TO, x_TI = widen(grad.flatten(0, -2)), widen(x.flatten(0, -2))
    if total.dtype == x_TI.dtype:
        total.addmm_(grad_TO.t(), x_TI, alpha=scale)
    else:
        total.add_(grad_TO.t() @ x_TI, alpha=scale)
