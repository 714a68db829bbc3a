"""Norms and activations: each a forward that saves and a backward that pops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from headway.trainer.model.kernels import Kernels
from headway.trainer.model.tape import Tape, VectorGrad
from headway.trainer.state.params import Parameter


class Norm(Protocol):
    """Normalises the last dimension, with statistics in fp32 or better."""

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """Normalise, and keep ``x`` and its statistics."""

    def recompute(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A function that makes the output for ``x`` again."""

    def backward(
        self, grad: torch.Tensor, tape: Tape, beside: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Gradient of x; those of the parameters wait on the tape.

        ``beside``, the gradient that reaches x around the norm, is added to it.
        """


class LayerNorm:
    """A ``Norm`` by mean and variance, with weight and bias."""

    def __init__(self, weight: Parameter, bias: Parameter, kernels: Kernels, eps: float) -> None:
        self.weight, self.bias, self.kernels, self.eps = weight, bias, kernels, eps

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """See ``Norm``."""
        y, mean, rstd = self.kernels.layer_norm(x, *self._scales(), self.eps)
        if tape is not None:
            tape.push((x, mean, rstd))
        return y

    def recompute(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        """See ``Norm``."""
        return lambda: self.forward(x, None)

    def backward(
        self, grad: torch.Tensor, tape: Tape, beside: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``Norm``."""
        x, mean, rstd = tape.pop()
        grad_x, grad_weight, grad_bias = self.kernels.layer_norm_backward(
            grad, x, mean, rstd, *self._scales(), beside
        )
        tape.queue(VectorGrad(self.weight, grad_weight))
        tape.queue(VectorGrad(self.bias, grad_bias))
        return grad_x

    def _scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias in the master type, so that statistics and gradients are too."""
        return self.weight.data.to(self.weight.grad.dtype), self.bias.data.to(self.bias.grad.dtype)


class RmsNorm:
    """A ``Norm`` by the mean square, with a weight."""

    def __init__(self, weight: Parameter, kernels: Kernels, eps: float) -> None:
        self.weight, self.kernels, self.eps = weight, kernels, eps

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """See ``Norm``."""
        y, rstd = self.kernels.rms_norm(x, self._scale(), self.eps)
        if tape is not None:
            tape.push((x, rstd))
        return y

    def recompute(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        """See ``Norm``."""
        return lambda: self.forward(x, None)

    def backward(
        self, grad: torch.Tensor, tape: Tape, beside: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``Norm``."""
        grad_x, grad_weight = self.kernels.rms_norm_backward(
            grad, *tape.pop(), self._scale(), beside
        )
        tape.queue(VectorGrad(self.weight, grad_weight))
        return grad_x

    def _scale(self) -> torch.Tensor:
        return self.weight.data.to(self.weight.grad.dtype)


class Activation:
    """GELU or SwiGLU between the two matrices of an MLP.

    ``recompute`` makes its output again from what it keeps.
    """

    def __init__(self, name: str, kernels: Kernels) -> None:
        """``name`` as in ``ModelConfig.mlp``."""
        kind = name.replace("-", "_")
        self._apply: Callable[[torch.Tensor], torch.Tensor] = getattr(kernels, kind)
        self._backward: Callable[..., torch.Tensor] = getattr(kernels, f"{kind}_backward")

    def forward(self, x: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """Apply, and keep ``x``."""
        if tape is not None:
            tape.push(x)
        return self._apply(x)

    def recompute(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A function that makes the output for ``x`` again."""
        return partial(self._apply, x)

    def backward(
        self, grad: torch.Tensor, tape: Tape, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Gradient of x, in ``out`` if it is given."""
        return self._backward(grad, tape.pop(), out)
