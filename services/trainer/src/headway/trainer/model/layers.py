"""The pieces of a block, each a forward and a backward: linear maps, LayerNorm,
GELU, rotary positions.

Shapes: T = tokens of a micro-batch on this rank (seq * micro_batch), I and O = a linear's widths.
Weight gradients are added to ``Parameter.grad`` in the master type and not returned.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from headway.trainer.model.matmul import accumulate, times, times_transposed
from headway.trainer.model.tape import Tape
from headway.trainer.state.params import Parameter

_aten = torch.ops.aten


class Linear:
    """y[..., O] = x[..., I] @ weight[O, I]^T. The owner decides how the weight
    is split over ranks."""

    def __init__(self, weight: Parameter) -> None:
        self.weight = weight

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """Multiply, and keep ``x`` for the weight gradient."""
        if tape is not None:
            tape.push(x)
        return times_transposed(x, self.weight.data)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of x; the weight gradient is queued on the tape."""
        x = tape.pop()
        tape.later(lambda: accumulate(self.weight.grad, grad, x))
        return times(grad, self.weight.data)


class LayerNorm:
    """Normalise the last dimension, statistics in fp32 or better (Ba et al., arXiv 1607.06450)."""

    eps = 1e-5

    def __init__(self, weight: Parameter, bias: Parameter) -> None:
        self.weight, self.bias = weight, bias

    def _scales(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias in a type that makes the kernel keep its statistics in fp32: on the CPU
        it uses the weight's type; on a GPU always fp32, but there all types must be equal."""
        if x.device.type == "cpu":
            return self.weight.data.to(self.weight.grad.dtype), self.bias.data.to(
                self.bias.grad.dtype
            )
        return self.weight.data, self.bias.data

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """Normalise, and keep ``x`` and its statistics."""
        weight, bias = self._scales(x)
        y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, self.eps)
        if tape is not None:
            tape.push((x, mean, rstd))
        return y

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of x; those of weight and bias are queued on the tape."""
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
    """GELU in its exact form (Hendrycks and Gimpel, arXiv 1606.08415); its tanh form takes four
    times as long on a CPU (2.9 against 0.7 ms for 0.8M elements)."""

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """Apply, and keep ``x``."""
        if tape is not None:
            tape.push(x)
        return F.gelu(x)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of x."""
        return _aten.gelu_backward(grad, tape.pop())  # type: ignore[no-any-return]


class Rotary:
    """Rotary positions (Su et al., arXiv 2104.09864): neighbours 2i and 2i + 1 of a head form a
    complex number, which position s turns by the angle ``s * theta ** (-2i / head_dim)``.

    q, k and v are adjacent, so one complex product over whole contiguous rows rotates q and k, with
    factor 1 for v: 40 times faster on a CPU than rotating halves of strided slices.
    """

    def __init__(
        self, head_dim: int, seq_len: int, theta: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        angle = torch.outer(torch.arange(seq_len, dtype=torch.float64), theta**-pairs)
        turn = torch.polar(torch.ones_like(angle), angle)
        factors = torch.cat((turn, turn, torch.ones_like(turn)), -1)  # [seq, 3 * head_dim / 2]
        self.width = 3 * head_dim
        self.factors = factors[:, None, None].to(device, dtype.to_complex())

    def turn(self, qkv: torch.Tensor, *, back: bool = False) -> torch.Tensor:
        """Rotate q and k of ``qkv`` [seq, micro_batch, heads * 3 * head_dim]; result
        in the type of sums.

        ``back`` rotates the other way, which is also the gradient, as the map is orthogonal.
        """
        wide = qkv.to(self.factors.dtype.to_real())
        numbers = torch.view_as_complex(wide.view(*qkv.shape[:2], -1, self.width // 2, 2))
        factors = self.factors[: len(qkv)]
        return torch.view_as_real(numbers * (factors.conj() if back else factors)).view(qkv.shape)
