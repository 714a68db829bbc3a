"""Matrix products in the compute type, with the fastest kernel of this machine.

A CPU without AVX-512 has no bf16 matrix kernel: torch falls back to scalar loops, 10 to 100 times
slower than fp32 (measured on an AVX2 EPYC: 6 against 65 GFLOP/s). There, bf16 operands are
converted, multiplied in fp32 and the product is rounded to bf16: what a bf16 kernel with fp32 sums
computes, at fp32 speed.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F

_ADDMM_TAKES_OUT_DTYPE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 12)


@cache
def kernel_dtype(dtype: torch.dtype, device_type: str) -> torch.dtype:
    """Return the type in which to multiply ``dtype`` on ``device_type``.

    It is ``dtype`` itself, or fp32 if that is faster.
    """
    if dtype is torch.bfloat16 and device_type == "cpu" and not _has_bf16_kernels():
        return torch.float32
    return dtype


def _has_bf16_kernels() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def to_kernel_dtype(x: torch.Tensor) -> torch.Tensor:
    """``x`` in its kernel type; ``x`` itself if that is its type."""
    return x.to(kernel_dtype(x.dtype, x.device.type))


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    rounded: bool = True,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x[..., I] @ weight[O, I]^T + bias[O] in the type of ``x``, in ``out`` if it is given.

    Without ``rounded``, it is in the kernel's type.
    """
    if out is not None and kernel_dtype(x.dtype, x.device.type) is x.dtype:
        rows, memory = x.flatten(0, -2), out.view(-1, out.shape[-1])
        if bias is None:
            torch.mm(rows, weight.t(), out=memory)
        else:
            torch.addmm(bias, rows, weight.t(), out=memory)
        return out
    added = None if bias is None else to_kernel_dtype(bias)
    product = F.linear(to_kernel_dtype(x), to_kernel_dtype(weight), added)
    if out is not None:
        return out.copy_(product)
    return product.to(x.dtype) if rounded else product


def add_linear(total: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``total`` [..., O], overwritten by ``total + x[..., I] @ weight[O, I]^T``."""
    if kernel_dtype(x.dtype, x.device.type) is not x.dtype:
        return total.add_(linear(x, weight))
    total.flatten(0, -2).addmm_(x.flatten(0, -2), weight.t())
    return total


def input_grad(
    grad: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """grad[..., O] @ weight[O, I] in the type of ``weight``, in ``out`` if it is given."""
    if out is not None:
        if kernel_dtype(grad.dtype, grad.device.type) is not grad.dtype:
            return out.copy_(to_kernel_dtype(grad) @ to_kernel_dtype(weight))
        torch.mm(grad.flatten(0, -2), weight, out=out.view(-1, out.shape[-1]))
        return out
    return (to_kernel_dtype(grad) @ to_kernel_dtype(weight)).to(weight.dtype)


def add_weight_grad(
    total: torch.Tensor, grad: torch.Tensor, x: torch.Tensor, scale: float = 1.0
) -> None:
    """total[O, I] += scale * grad[..., O]^T @ x[..., I], in the master type.

    On GPUs the product of bf16 operands is written in fp32. torch has no such kernel on CPUs: where
    they have bf16 units, the product is rounded to bf16 before it is added (docs/numerics.md).
    """
    grad_OT = to_kernel_dtype(grad.flatten(0, -2)).t()
    x_TI = to_kernel_dtype(x.flatten(0, -2))
    if total.dtype == x_TI.dtype:
        total.addmm_(grad_OT, x_TI, alpha=scale)
    elif total.device.type == "cpu":
        total.add_(grad_OT @ x_TI, alpha=scale)
    elif _ADDMM_TAKES_OUT_DTYPE:
        torch.addmm(total, grad_OT, x_TI, out_dtype=total.dtype, alpha=scale, out=total)
    else:
        total.add_(torch.mm(grad_OT, x_TI, out_dtype=total.dtype), alpha=scale)
