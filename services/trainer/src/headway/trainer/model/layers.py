"""LayerNorm, GELU and rotary positions: each a forward that saves and a backward that pops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from headway.trainer.model.kernels import Kernels
from headway.trainer.model.tape import Tape, VectorGrad
from headway.trainer.state.params import Parameter


class LayerNorm:
    """Normalise the last dimension, with statistics in fp32 or better."""

    eps = 1e-5

    def __init__(self, weight: Parameter, bias: Parameter, kernels: Kernels) -> None:
        self.weight, self.bias, self.kernels = weight, bias, kernels

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """Normalise, and keep ``x`` and its statistics."""
        y, mean, rstd = self.kernels.layer_norm(x, *self._scales(), self.eps)
        if tape is not None:
            tape.push((x, mean, rstd))
        return y

    def again(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A function that makes the output for ``x`` again."""
        return lambda: self.forward(x, None)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of x; those of weight and bias wait on the tape."""
        x, mean, rstd = tape.pop()
        grad_x, grad_weight, grad_bias = self.kernels.layer_norm_backward(
            grad, x, mean, rstd, *self._scales()
        )
        tape.wait(VectorGrad(self.weight, grad_weight))
        tape.wait(VectorGrad(self.bias, grad_bias))
        return grad_x

    def _scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias in the master type, so that statistics and gradients are too."""
        return self.weight.data.to(self.weight.grad.dtype), self.bias.data.to(self.bias.grad.dtype)


class Gelu:
    """GELU; ``again`` makes its output again from what it keeps."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """Apply, and keep ``x``."""
        if tape is not None:
            tape.push(x)
        return self.kernels.gelu(x)

    def again(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A function that makes the output for ``x`` again."""
        return partial(self.kernels.gelu, x)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of x."""
        return self.kernels.gelu_backward(grad, tape.pop())


class Rotary:
    """Cosines and sines of rotary positions (Su et al., arXiv 2104.09864): pair i of a head is
    rotated at position s by the angle ``s * theta ** (-2i / head_dim)``."""

    def __init__(
        self, head_dim: int, seq_len: int, theta: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        angle = torch.outer(torch.arange(seq_len, dtype=torch.float64), theta**-pairs)
        self._cos = angle.cos()[:, None, None].to(device, dtype)  # [seq, 1, 1, head_dim / 2]
        self._sin = angle.sin()[:, None, None].to(device, dtype)

    def at(
        self, length: int, positions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines for ``length`` tokens: of ``positions`` [length, B], or of
        0 to ``length`` - 1."""
        if positions is None:
            return self._cos[:length], self._sin[:length]
        return self._cos[positions, 0], self._sin[positions, 0]
