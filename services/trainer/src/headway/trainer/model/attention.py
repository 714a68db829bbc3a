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

_Pair = tuple[torch.Tensor, torch.Tensor]
_Raw = tuple[_Pair, ...]
"""Queries and keys before their norms, each with its statistics; () without norms."""


@dataclass(frozen=True)
class HeadNorms:
    """RMSNorm of each head's queries and keys, before they are rotated; weights [D]."""

    queries: Parameter
    keys: Parameter
    eps: float

    @property
    def weights(self) -> tuple[Parameter, Parameter]:
        """Weights of the norms of queries and of keys."""
        return self.queries, self.keys


@dataclass(eq=False)
class Attention:
    """softmax(rotate(q) rotate(k)^T / sqrt(D)) v with a causal mask, by the device's fused kernel.

    The kernel and its backward differ by device and type, so this one step keeps a small autograd
    graph between forward and backward; no collective runs inside it. With ``recompute`` only
    ``qkv`` is kept and the kernel runs again in the backward (selective recomputation,
    arXiv 2205.05198, section 5).
    """

    head_dim: int
    queries: int
    kernels: Kernels
    window: int | None = None
    norms: HeadNorms | None = None
    recompute: bool = False

    def forward(self, qkv: torch.Tensor, at: Positions, tape: Tape | None) -> torch.Tensor:
        """qkv [S, B, G * (Q + 2) * D] -> [S, B, G * Q * D]."""
        if tape is None or self.recompute:
            out = self._attend(*self._heads(qkv, at)[0], at)
            if tape is not None:
                tape.push((qkv, at))
        else:
            graph = self._graph(qkv, at)
            tape.push((graph, at))
            out = graph[0][-1].detach()
        return out.permute(2, 0, 1, 3).flatten(2).to(qkv.dtype)

    def backward(
        self, grad: torch.Tensor, tape: Tape, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Gradient of ``qkv``, in ``out`` if it is given."""
        kept, at = tape.pop()
        (*leaves, result), raw = self._graph(kept, at) if self.recompute else kept
        grad_SBHD = to_kernel_dtype(grad).view(*grad.shape[:2], -1, self.head_dim)
        q, k, v = torch.autograd.grad(result, leaves, heads_first(grad_SBHD))
        if self.norms is not None:
            q, k = self._norm_backward((q, k), raw, at, self.norms, tape)
        if at.rope is None or self.norms is not None:
            return self.kernels.join_plain(q, k, v, self.queries, out).to(grad.dtype)
        return self.kernels.join_heads(q, k, v, *at.rope, self.queries, out).to(grad.dtype)

    def _heads(self, qkv: torch.Tensor, at: Positions) -> tuple[Three, _Raw]:
        """q, k and v, normalised and rotated; and what the backward of the norms needs."""
        dtype = kernel_dtype(qkv.dtype, qkv.device.type)
        raw: _Raw = ()
        if at.rope is None or self.norms is not None:
            q, k, v = self.kernels.split_plain(qkv, self.head_dim, self.queries)
        else:
            q, k, v = self.kernels.split_heads(qkv, *at.rope, self.queries)
        if self.norms is not None:
            (q, k), raw = self._normed((q, k), self.norms, at)
        return (q.to(dtype), k.to(dtype), v.to(dtype)), raw

    def _normed(self, heads: _Pair, norms: HeadNorms, at: Positions) -> tuple[_Pair, _Raw]:
        found, raw = [], []
        for x, weight in zip(heads, norms.weights, strict=True):
            y, rstd = self.kernels.rms_norm(x, _wide(weight), norms.eps)
            found.append(y if at.rope is None else rotate(y, *at.rope))
            raw.append((x, rstd))
        return (found[0], found[1]), tuple(raw)

    def _norm_backward(
        self, grads: _Pair, raw: _Raw, at: Positions, norms: HeadNorms, tape: Tape
    ) -> _Pair:
        found = []
        for grad, kept, weight in zip(grads, raw, norms.weights, strict=True):
            if at.rope is not None:
                grad = rotate(grad, at.rope[0], -at.rope[1])  # the map is orthogonal
            grad, grad_weight = self.kernels.rms_norm_backward(grad, *kept, _wide(weight))
            tape.queue(VectorGrad(weight, grad_weight))
            found.append(grad)
        return found[0], found[1]

    def _graph(self, qkv: torch.Tensor, at: Positions) -> tuple[tuple[torch.Tensor, ...], _Raw]:
        """The leaves of a small graph, and at its end the output."""
        heads, raw = self._heads(qkv, at)
        with torch.enable_grad():
            q, k, v = (t.detach().requires_grad_() for t in heads)
            return (q, k, v, self._attend(q, k, v, at)), raw

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: Positions
    ) -> torch.Tensor:
        return attend(q, k, v, window=self.window, borders=at.borders, packing=at.packing)


def _wide(weight: Parameter) -> torch.Tensor:
    """In the master type, so that statistics and gradients are too."""
    return weight.data.to(weight.grad.dtype)
