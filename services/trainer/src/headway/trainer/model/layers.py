"""The pieces of a block, each a forward and a backward: linear maps, LayerNorm, GELU, rotary positions.

Shapes: T = tokens of a micro-batch on this rank (seq * micro_batch), I and O = a linear's widths.
Weight gradients go from here straight into ``Parameter.grad`` in the master type, and are returned to nobody.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from headway.trainer.model.matmul import accumulate, times, times_transposed
from headway.trainer.model.tape import Tape
from headway.trainer.parallel.params import Parameter

_aten = torch.ops.aten


class Linear:
    """y[..., O] = x[..., I] @ weight[O, I]^T. How the weight is cut over ranks is its owner's business."""

    def __init__(self, weight: Parameter) -> None:
        self.weight = weight

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """Multiply, and keep ``x`` for the weight gradient."""
        if tape is not None:
            tape.push(x)
        return times_transposed(x, self.weight.data)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of x; the weight gradient waits on the tape."""
        x = tape.pop()
        tape.later(lambda: accumulate(self.weight.grad, grad, x))
        return times(grad, self.weight.data)


class LayerNorm:
    """Normalise the last dimension, statistics in fp32 or better (Ba et al., arXiv 1607.06450)."""

    eps = 1e-5

    def __init__(self, weight: Parameter, bias: Parameter) -> None:
        self.weight, self.bias = weight, bias

    def _scales(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias in a type that makes the kernel keep its statistics in fp32: on the CPU it keeps
        them in the weight's type, on a GPU always in fp32, but there it wants all types equal."""
        if x.device.type == "cpu":
            return self.weight.data.to(self.weight.grad.dtype), self.bias.data.to(self.bias.grad.dtype)
        return self.weight.data, self.bias.data

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """Normalise, and keep ``x`` and its statistics."""
        weight, bias = self._scales(x)
        y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, self.eps)
        if tape is not None:
            tape.push((x, mean, rstd))
        return y

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of x; those of weight and bias wait on the tape."""
        x, mean, rstd = tape.pop()
        weight, bias = self._scales(x)
        grad_x, grad_weight, grad_bias = _aten.native_layer_norm_backward(
            grad, x, x.shape[-1:], mean, rstd, weight, bias, [True, True, True]
        )

        def add() -> None:
            self.weight.grad.add_(grad_weight)
            self.bias.grad.add_(grad_bias)

        tape.later(add)
        return grad_x  # type: ignore[no-any-return]


class Gelu:
    """GELU in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415)."""

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """Apply, and keep ``x``."""
        if tape is not None:
            tape.push(x)
        return F.gelu(x, approximate="tanh")

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of x."""
        return _aten.gelu_backward(grad, tape.pop(), approximate="tanh")  # type: ignore[no-any-return]


class Rotary:
    """Rotary positions (Su et al., arXiv 2104.09864), halves of a head paired as in GPT-NeoX."""

    def __init__(
        self, head_dim: int, seq_len: int, theta: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        angle = torch.outer(torch.arange(seq_len, dtype=torch.float64), theta**-pairs)
        self.cos = angle.cos().to(device, dtype)[:, None, None, None]  # [seq, 1, 1, 1, head_dim / 2]
        self.sin = angle.sin().to(device, dtype)[:, None, None, None]

    def rotate(self, x: torch.Tensor, out: torch.Tensor, *, back: bool = False) -> None:
        """Write the rotation of x[seq, micro_batch, heads, n, head_dim] to ``out``; ``back`` undoes it.

        The rotation is orthogonal, so ``back`` is also its gradient.
        """
        cos, sin = self.cos[: x.shape[0]], self.sin[: x.shape[0]]
        first, second = x.chunk(2, -1)
        out_first, out_second = out.chunk(2, -1)
        if back:
            sin = -sin
        out_first.copy_(first * cos - second * sin)
        out_second.copy_(second * cos + first * sin)
