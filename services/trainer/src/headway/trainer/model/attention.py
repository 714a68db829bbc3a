"""Causal attention over this rank's heads, and its backward.

Shapes: S = seq, B = micro-batch, G = local heads of keys and values, Q = heads of queries for each
of them, D = head_dim. ``qkv`` is laid out as in ``kernels.heads``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.fx.experimental.symbolic_shapes  # autograd.grad imports it at its first call: 35 MB
from headway.trainer.model.kernels import Kernels
from headway.trainer.model.kernels.attention import attend
from headway.trainer.model.kernels.heads import Three, heads_first, rotate
from headway.trainer.model.matmul import kernel_dtype, to_kernel_dtype
from headway.trainer.model.positions import Positions
from headway.trainer.model.tape import Tape, VectorGrad
from headway.trainer.state.params import Parameter


@dataclass(frozen=True)
class HeadNorms:
    """RMSNorm of each head's queries and keys, before they are rotated; weights [D]."""

    queries: Parameter
    keys: Parameter
    eps: float


class Attention:
    """softmax(rotate(q) rotate(k)^T / sqrt(D)) v with a causal mask, by the device's fused kernel.

    The kernel and its backward differ by device and type, so this one step keeps a small autograd
    graph between forward and backward; no collective runs inside it. With ``recompute`` only
    ``qkv`` is kept and the kernel runs again in the backward (selective recomputation,
    arXiv 2205.05198, section 5).
    """

    def __init__(
        self,
        head_dim: int,
        queries: int,
        kernels: Kernels,
        *,
        window: int | None = None,
        norms: HeadNorms | None = None,
        recompute: bool = False,
    ) -> None:
        self.head_dim, self.queries, self.kernels = head_dim, queries, kernels
        self.window, self.norms, self.recompute = window, norms, recompute

    def forward(self, qkv: torch.Tensor, at: Positions, tape: Tape | None) -> torch.Tensor:
        """qkv [S, B, G * (Q + 2) * D] -> [S, B, G * Q * D]."""
        if tape is None or self.recompute:
            out = self._attend(self._heads(qkv, at), self._weights(), at)
            if tape is not None:
                tape.push((qkv, at))
        else:
            graph = self._graph(qkv, at)
            tape.push((graph, at))
            out = graph[-1].detach()
        return out.permute(2, 0, 1, 3).flatten(2).to(qkv.dtype)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of ``qkv``."""
        kept, at = tape.pop()
        *leaves, out = self._graph(kept, at) if self.recompute else kept
        grad_SBHD = to_kernel_dtype(grad).view(*grad.shape[:2], -1, self.head_dim)
        q, k, v, *scales = torch.autograd.grad(out, leaves, heads_first(grad_SBHD))
        if self.norms is not None:
            tape.wait(VectorGrad(self.norms.queries, scales[0]))
            tape.wait(VectorGrad(self.norms.keys, scales[1]))
        if at.rope is None or self.norms is not None:
            return self.kernels.join_plain(q, k, v, self.queries).to(grad.dtype)
        return self.kernels.join_heads(q, k, v, *at.rope, self.queries).to(grad.dtype)

    def _heads(self, qkv: torch.Tensor, at: Positions) -> Three:
        """q, k and v; rotated, unless they are normalised first."""
        dtype = kernel_dtype(qkv.dtype, qkv.device.type)
        if at.rope is None or self.norms is not None:
            q, k, v = self.kernels.split_plain(qkv, self.head_dim, self.queries)
        else:
            q, k, v = self.kernels.split_heads(qkv, *at.rope, self.queries)
        return q.to(dtype), k.to(dtype), v.to(dtype)

    def _weights(self) -> list[torch.Tensor]:
        """The norms' weights in the master type."""
        if self.norms is None:
            return []
        return [p.data.to(p.grad.dtype) for p in (self.norms.queries, self.norms.keys)]

    def _graph(self, qkv: torch.Tensor, at: Positions) -> tuple[torch.Tensor, ...]:
        """The leaves of a small graph, and at its end the output."""
        with torch.enable_grad():
            q, k, v = (t.detach().requires_grad_() for t in self._heads(qkv, at))
            weights = [weight.detach().requires_grad_() for weight in self._weights()]
            return q, k, v, *weights, self._attend((q, k, v), weights, at)

    def _attend(self, heads: Three, weights: list[torch.Tensor], at: Positions) -> torch.Tensor:
        q, k, v = heads
        if self.norms is not None:
            q, k = (
                _normed(x, weight, self.norms.eps)
                for x, weight in zip((q, k), weights, strict=True)
            )
            if at.rope is not None:
                q, k = rotate(q, *at.rope), rotate(k, *at.rope)
        return attend(q, k, v, window=self.window, borders=at.borders)


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm in the weight's type, by operations that autograd follows."""
    wide = x.to(weight.dtype)
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * scale * weight).to(x.dtype)
