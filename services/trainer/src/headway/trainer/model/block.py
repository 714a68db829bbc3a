"""One transformer layer, serial (two pairs of tensor-parallel collectives) or parallel (one pair).

Shapes: x, y and their gradients [seq/tp, micro_batch, hidden].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from headway.trainer.model.attention import Attention
from headway.trainer.model.layers import Activation, Norm
from headway.trainer.model.linear import ColumnLinear, RowLinear, RowPair
from headway.trainer.model.positions import Positions
from headway.trainer.model.tape import Kept, Tape


class Block(Protocol):
    """A layer; its forward pushes onto the tape what its backward pops."""

    def forward(self, x: torch.Tensor, at: Positions, tape: Tape | None) -> torch.Tensor:
        """The layer's output; ``x`` is kept, never written."""

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of ``x``; ``grad`` is kept until the tape is finished, never written."""


@dataclass(eq=False)
class SerialBlock:
    """The serial block: y = h + mlp(norm2(h)), h = x + attention(norm1(x)).

    It makes two gathers and two scatters per direction.

    With ``recompute_cheap`` the outputs of norms and activation are made again in the backward, not
    kept.
    """

    norm1: Norm
    qkv: ColumnLinear
    attention: Attention
    out: RowLinear
    norm2: Norm
    up: ColumnLinear
    activation: Activation
    down: RowLinear
    recompute_cheap: bool = False

    def forward(self, x: torch.Tensor, at: Positions, tape: Tape | None) -> torch.Tensor:
        """See ``Block``."""
        normed = self.norm1.forward(x, tape)
        qkv = self.qkv.forward(normed, tape, _recompute(self, self.norm1, x))
        del normed
        h = x + self.out.forward(self.attention.forward(qkv, at, tape), tape)
        del qkv
        normed = self.norm2.forward(h, tape)
        wide = self.up.forward(normed, tape, _recompute(self, self.norm2, h))
        del normed
        recompute = _recompute(self, self.activation, wide)
        return h + self.down.forward(self.activation.forward(wide, tape), tape, recompute)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """See ``Block``."""
        wide = self.activation.backward(self.down.backward(grad, tape), tape)
        grad = self.norm2.backward(self.up.backward(wide, tape), tape, grad)
        qkv = self.attention.backward(self.out.backward(grad, tape), tape)
        return self.norm1.backward(self.qkv.backward(qkv, tape), tape, grad)


@dataclass(eq=False)
class ParallelBlock:
    """y = x + attention(n) + mlp(n) with n = norm(x) (MegaScale, arXiv 2402.15627, section 3.1).

    Both halves share one gather and one scatter per direction, and one product in (``wide``, whose
    weight is that of qkv above that of the MLP) and one sum out.
    """

    norm: Norm
    wide: ColumnLinear
    attention: Attention
    activation: Activation
    out_down: RowPair
    qkv_width: int
    recompute_cheap: bool = False

    def forward(self, x: torch.Tensor, at: Positions, tape: Tape | None) -> torch.Tensor:
        """See ``Block``."""
        normed = self.norm.forward(x, tape)
        wide = self.wide.forward(normed, tape, _recompute(self, self.norm, x))
        del normed
        qkv, up = wide[..., : self.qkv_width], wide[..., self.qkv_width :]
        attended = self.attention.forward(qkv, at, tape)
        recompute = _recompute(self, self.activation, up)
        return x + self.out_down.forward(
            attended, self.activation.forward(up, tape), tape, recompute
        )

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """See ``Block``."""
        attended, up = self.out_down.backward(grad, tape)
        wide = up.new_empty((*up.shape[:-1], len(self.wide.weight.data)))
        self.activation.backward(up, tape, wide[..., self.qkv_width :])
        del up
        self.attention.backward(attended, tape, wide[..., : self.qkv_width])
        del attended
        return self.norm.backward(self.wide.backward(wide, tape), tape, grad)


@dataclass(eq=False)
class TwoNormBlock:
    """The parallel block of GPT-NeoX: y = x + attention(norm1(x)) + mlp(norm2(x)).

    See arXiv 2204.06745. Its forward makes two gathers and one scatter.
    """

    norm1: Norm
    qkv: ColumnLinear
    attention: Attention
    norm2: Norm
    up: ColumnLinear
    activation: Activation
    out_down: RowPair
    recompute_cheap: bool = False

    def forward(self, x: torch.Tensor, at: Positions, tape: Tape | None) -> torch.Tensor:
        """See ``Block``."""
        recompute = _recompute(self, self.norm1, x)
        qkv = self.qkv.forward(self.norm1.forward(x, tape), tape, recompute)
        attended = self.attention.forward(qkv, at, tape)
        recompute = _recompute(self, self.norm2, x)
        wide = self.up.forward(self.norm2.forward(x, tape), tape, recompute)
        recompute = _recompute(self, self.activation, wide)
        return x + self.out_down.forward(
            attended, self.activation.forward(wide, tape), tape, recompute
        )

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """See ``Block``."""
        attended, wide = self.out_down.backward(grad, tape)
        wide = self.activation.backward(wide, tape)
        grad = self.norm2.backward(self.up.backward(wide, tape), tape, grad)
        qkv = self.attention.backward(attended, tape)
        return self.norm1.backward(self.qkv.backward(qkv, tape), tape, grad)


class RecomputedBlock:
    """Keeps only the input of ``block`` and runs its forward again in the backward.

    See Chen et al., arXiv 1604.06174. The bits do not change.
    """

    def __init__(self, block: Block) -> None:
        self.block = block

    def forward(self, x: torch.Tensor, at: Positions, tape: Tape | None) -> torch.Tensor:
        """See ``Block``."""
        if tape is not None:
            tape.push((x, at))
        return self.block.forward(x, at, None)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """See ``Block``."""
        x, at = tape.pop()
        inner = Tape()
        inner.deferred = tape.deferred
        inner.adopt(tape)  # what waits from the layer after is added under this one's collectives
        self.block.forward(x, at, inner)
        grad = self.block.backward(grad, inner)
        tape.adopt(inner)
        return grad


def _recompute(
    block: SerialBlock | ParallelBlock | TwoNormBlock, layer: Norm | Activation, x: torch.Tensor
) -> Kept | None:
    """What makes the output of ``layer`` for ``x`` again; None where the output is kept."""
    return layer.recompute(x) if block.recompute_cheap else None
