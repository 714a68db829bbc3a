"""The two linear maps of tensor parallelism, with the collectives that they need.

``ColumnLinear`` takes this rank's piece of the sequence and makes its piece of the width,
``RowLinear`` the reverse (Megatron-LM, arXiv 1909.08053, section 3, with sequence parallelism,
arXiv 2205.05198). Both keep pieces of a sequence and gather them again for the weight gradient, if
it is deferred only then; or, by choice, the whole (``parallel.tp_keep``).
Shapes: S = seq, B = micro-batch, I and O = widths of the whole map.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from headway.trainer.model.matmul import add_linear, input_grad, linear
from headway.trainer.model.tape import Kept, MatmulGrad, Tape, VectorGrad, value
from headway.trainer.parallel.tensor import Pending, TensorParallel
from headway.trainer.state.params import Parameter


class ColumnLinear:
    """y[S, B, O/tp] = all_gather(x[S/tp, B, I]) @ weight[O/tp, I]^T + bias[O/tp]."""

    def __init__(
        self, weight: Parameter, tp: TensorParallel, bias: Parameter | None = None
    ) -> None:
        self.weight, self.tp, self.bias = weight, tp, bias

    def forward(
        self, x: torch.Tensor, tape: Tape | None, recompute: Kept | None = None
    ) -> torch.Tensor:
        """Gather and multiply. Keeps ``x`` or the whole, or ``recompute``, which makes it again."""
        bias = None if self.bias is None else self.bias.data
        weight = self.weight.data
        whole, (y,) = self.tp.gather_matmul(
            x, (len(weight), lambda rows, out: linear(rows, weight, bias, out=out))
        )
        if tape is not None:
            kept = whole if self.tp.keeps_whole else x
            tape.push(kept if recompute is None else recompute)
        return y

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Return the gradient of ``x``.

        The gather of ``x``, if its piece was kept, runs under the product; weight gradients that
        wait run under the reduce-scatter, and this one under the next collective.
        """
        kept = tape.pop()
        x: Kept | Pending = kept
        is_whole = self.tp.keeps_whole and isinstance(kept, torch.Tensor)
        if self.tp.size > 1 and not is_whole:
            x = _gathered_later(self.tp, kept) if tape.deferred else self.tp.all_gather(value(kept))
        weight = self.weight.data
        pending = self.tp.matmul_scatter(len(grad), lambda rows: input_grad(grad[rows], weight))
        tape.flush()
        tape.queue(MatmulGrad(self.weight, grad, x))
        _wait_for_bias(tape, self.bias, grad)
        return pending.wait()


class RowLinear:
    """y[S/tp, B, O] = reduce_scatter(x[S, B, I/tp] @ weight[O, I/tp]^T) + bias[O]."""

    def __init__(
        self, weight: Parameter, tp: TensorParallel, bias: Parameter | None = None
    ) -> None:
        self.weight, self.tp, self.bias = weight, tp, bias

    def forward(
        self, x: torch.Tensor, tape: Tape | None, recompute: Kept | None = None
    ) -> torch.Tensor:
        """Multiply and sum over ranks. Keeps ``x``, or ``recompute``."""
        if tape is not None:
            tape.push(x if recompute is None else recompute)
        weight = self.weight.data
        y = self.tp.matmul_scatter(len(x), lambda rows: linear(x[rows], weight)).wait()
        return y if self.bias is None else y.add_(self.bias.data)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of ``x``; ``grad`` is kept until its weight gradient is added."""
        tape_x, weight = tape.pop(), self.weight.data
        whole, (product,) = self.tp.gather_matmul(
            grad,
            (weight.shape[1], lambda rows, out: input_grad(rows, weight, out)),
            meanwhile=tape.flush,
        )
        tape.queue(MatmulGrad(self.weight, _for_later(self.tp, tape, grad, whole), tape_x))
        _wait_for_bias(tape, self.bias, grad)
        return product


@dataclass(eq=False)
class RowPair:
    """y = reduce_scatter(a @ first^T + b @ second^T) + biases.

    Both outputs of a parallel block take one sum.
    """

    first: Parameter
    second: Parameter
    tp: TensorParallel
    biases: tuple[Parameter, ...] = ()

    def forward(
        self, a: torch.Tensor, b: torch.Tensor, tape: Tape | None, recompute: Kept | None = None
    ) -> torch.Tensor:
        """Multiply both into one sum. Keeps ``a`` and ``b``, or ``recompute`` instead of ``b``."""
        if tape is not None:
            tape.push((a, b if recompute is None else recompute))
        first, second = self.first.data, self.second.data
        y = self.tp.matmul_scatter(
            len(a), lambda rows: add_linear(linear(a[rows], first), b[rows], second)
        ).wait()
        for bias in self.biases:
            y.add_(bias.data)
        return y

    def backward(self, grad: torch.Tensor, tape: Tape) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of ``a`` and ``b``."""
        a, b = tape.pop()
        first, second = self.first.data, self.second.data
        whole, products = self.tp.gather_matmul(
            grad,
            (first.shape[1], lambda rows, out: input_grad(rows, first, out)),
            (second.shape[1], lambda rows, out: input_grad(rows, second, out)),
            meanwhile=tape.flush,
        )
        kept = _for_later(self.tp, tape, grad, whole)
        tape.queue(MatmulGrad(self.first, kept, a))
        tape.queue(MatmulGrad(self.second, kept, b))
        for bias in self.biases:
            _wait_for_bias(tape, bias, grad)
        return products[0], products[1]


def _wait_for_bias(tape: Tape, bias: Parameter | None, grad: torch.Tensor) -> None:
    """Queue the gradient of a bias that was added to every token; summed in the master type."""
    if bias is not None:
        tape.queue(VectorGrad(bias, grad.sum((0, 1), dtype=bias.grad.dtype)))


def _for_later(tp: TensorParallel, tape: Tape, piece: torch.Tensor, whole: torch.Tensor) -> Kept:
    """What a weight gradient keeps of a gathered tensor: its piece, if it is deferred."""
    if tape.deferred and tp.size > 1 and not tp.keeps_whole:
        return _gathered_later(tp, piece)
    return whole


def _gathered_later(tp: TensorParallel, kept: Kept) -> Kept:
    return lambda: tp.all_gather(value(kept)).wait()
