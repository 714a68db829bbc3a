"""One transformer layer, serial (two pairs of tensor-parallel collectives) or parallel (one pair).

Shapes: x, y and their gradients [seq/tp, micro_batch, hidden]; inside ``Attend`` and
``Mlp`` whole sequences.
"""

from __future__ import annotations

from typing import Protocol

import torch
from headway.trainer.model.attention import Attention
from headway.trainer.model.layers import Gelu, LayerNorm, Linear
from headway.trainer.model.tape import Tape
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.params import Parameter


class Block(Protocol):
    """A layer; its forward pushes onto the tape what its backward pops."""

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """The layer's output; ``x`` is kept, never written."""

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of ``x``; ``grad`` is kept until the tape is finished, never written."""


class Attend:
    """Attention between two linears, the first split by columns, the second by
    rows; whole sequences."""

    def __init__(self, qkv: Parameter, out: Parameter, attention: Attention) -> None:
        self.qkv, self.out, self.attention = Linear(qkv), Linear(out), attention

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """This rank's share of the sum over ranks."""
        return self.out.forward(self.attention.forward(self.qkv.forward(x, tape), tape), tape)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """This rank's share of the gradient of x."""
        return self.qkv.backward(self.attention.backward(self.out.backward(grad, tape), tape), tape)


class Mlp:
    """GELU between two linears, the first split by columns, the second by rows; whole sequences."""

    def __init__(self, up: Parameter, down: Parameter) -> None:
        self.up, self.down, self.gelu = Linear(up), Linear(down), Gelu()

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """This rank's share of the sum over ranks."""
        return self.down.forward(self.gelu.forward(self.up.forward(x, tape), tape), tape)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """This rank's share of the gradient of x."""
        return self.up.backward(self.gelu.backward(self.down.backward(grad, tape), tape), tape)


class _Branch:
    """y = x + scatter(inner(gather(norm(x))))."""

    def __init__(self, norm: LayerNorm, inner: Attend | Mlp, tp: TensorParallel) -> None:
        self.norm, self.inner, self.tp = norm, inner, tp

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        whole = self.tp.gather(self.norm.forward(x, tape)).wait()
        return x + self.tp.scatter(self.inner.forward(whole, tape)).wait()

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        whole = self.tp.gather(grad).wait()
        pending = self.tp.scatter(self.inner.backward(whole, tape))
        tape.flush()  # weight gradients run during the scatter
        return grad + self.norm.backward(pending.wait(), tape)


class SerialBlock:
    """y = h + mlp(norm2(h)), h = x + attention(norm1(x)): two gathers and
    scatters per direction."""

    def __init__(
        self, norm1: LayerNorm, attend: Attend, norm2: LayerNorm, mlp: Mlp, tp: TensorParallel
    ) -> None:
        self.first, self.second = _Branch(norm1, attend, tp), _Branch(norm2, mlp, tp)

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """See ``Block``."""
        return self.second.forward(self.first.forward(x, tape), tape)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """See ``Block``."""
        return self.first.backward(self.second.backward(grad, tape), tape)


class ParallelBlock:
    """y = x + attention(n) + mlp(n) with n = norm(x) (MegaScale, arXiv 2402.15627, section 3.1).

    Both halves share one gather and one scatter per direction.
    """

    def __init__(self, norm: LayerNorm, attend: Attend, mlp: Mlp, tp: TensorParallel) -> None:
        self.norm, self.attend, self.mlp, self.tp = norm, attend, mlp, tp

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """See ``Block``."""
        whole = self.tp.gather(self.norm.forward(x, tape)).wait()
        partial = self.attend.forward(whole, tape).add_(self.mlp.forward(whole, tape))
        return x + self.tp.scatter(partial).wait()

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """See ``Block``."""
        whole = self.tp.gather(grad).wait()
        partial = self.mlp.backward(whole, tape)
        pending = self.tp.scatter(partial.add_(self.attend.backward(whole, tape)))
        tape.flush()
        return grad + self.norm.backward(pending.wait(), tape)
