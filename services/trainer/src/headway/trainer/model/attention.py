"""Causal attention over this rank's heads, and its backward.

Shapes: S = seq, B = micro-batch, H = local heads, D = head_dim. ``qkv`` holds q, k, v of one head
next to each other, so that tensor parallelism splits its rows between heads.
"""

from __future__ import annotations

import torch
import torch.fx.experimental.symbolic_shapes  # autograd.grad imports it at its first call: 35 MB
import torch.nn.functional as F
from headway.trainer.model.kernels import Kernels, heads_first
from headway.trainer.model.matmul import kernel_dtype, to_kernel_dtype
from headway.trainer.model.tape import Tape

Rope = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of the positions, [S, 1 or B, 1, D / 2]."""


class Attention:
    """softmax(rotate(q) rotate(k)^T / sqrt(D)) v with a causal mask, by the device's fused kernel.

    The kernel and its backward differ by device and type, so this one step keeps a small autograd
    graph between forward and backward; no collective runs inside it. With ``recompute`` only
    ``qkv`` is kept and the kernel runs again in the backward (selective recomputation,
    arXiv 2205.05198, section 5).
    """

    def __init__(self, head_dim: int, kernels: Kernels, *, recompute: bool = False) -> None:
        self.head_dim, self.kernels, self.recompute = head_dim, kernels, recompute

    def forward(self, qkv: torch.Tensor, rope: Rope, tape: Tape | None) -> torch.Tensor:
        """qkv [S, B, H * 3 * D] -> [S, B, H * D]."""
        if tape is None or self.recompute:
            out = _attend(*self._heads(qkv, rope))
            if tape is not None:
                tape.push((qkv, rope))
        else:
            graph = self._graph(qkv, rope)
            tape.push((graph, rope))
            out = graph[3].detach()
        return out.permute(2, 0, 1, 3).flatten(2).to(qkv.dtype)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of ``qkv``, [S, B, H * 3 * D]."""
        kept, rope = tape.pop()
        q, k, v, out = self._graph(kept, rope) if self.recompute else kept
        grad_SBHD = to_kernel_dtype(grad).view(*grad.shape[:2], -1, self.head_dim)
        grads = torch.autograd.grad(out, (q, k, v), heads_first(grad_SBHD))
        return self.kernels.join_heads(*grads, *rope).to(grad.dtype)

    def _heads(self, qkv: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, ...]:
        dtype = kernel_dtype(qkv.dtype, qkv.device.type)
        return tuple(t.to(dtype) for t in self.kernels.split_heads(qkv, *rope))

    def _graph(self, qkv: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            q, k, v = (t.detach().requires_grad_() for t in self._heads(qkv, rope))
            return q, k, v, _attend(q, k, v)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
