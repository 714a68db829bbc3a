"""The time that the step's matrix products and attention alone take: what no engine can beat.

Exact shapes, all weights and activations apart in memory as in a real step: forward, input gradient
and weight gradient of every linear, forward and backward of the device's fused attention.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.train.shapes import Shape
from benchmarks.train.turns import Step, Turns
from benchmarks.train.worker import Job


def run(job: Job, turns: Turns) -> None:
    """One turn's step is the products of one optimizer step, in micro-batches of ``micro``."""
    turns.play(lambda: _build(job))


def _build(job: Job) -> Step:
    shape, micro = job.model, int(job.options["micro"])
    dtype = torch.bfloat16 if job.options["dtype"] == "bf16" else torch.float32
    parts = [Products(shape, micro, dtype), Attention(shape, micro, dtype)]

    def step(_: int) -> float:
        for _ in range(shape.batch // micro):
            for part in parts:
                part.run()
        return 0.0

    return step


class Products:
    """Three products per linear and micro-batch."""

    def __init__(self, shape: Shape, micro: int, dtype: torch.dtype) -> None:
        d, tokens = shape.hidden, shape.seq * micro
        widths = [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)] * shape.layers + [(d, shape.vocab)]
        self._linears = [
            (
                torch.randn(tokens, inner).to(dtype),
                torch.randn(outer, inner).to(dtype),
                torch.randn(tokens, outer).to(dtype),
            )
            for inner, outer in widths
        ]

    def run(self) -> None:
        """All forwards, then all backwards."""
        for x_TI, weight_OI, _ in self._linears:
            F.linear(x_TI, weight_OI)
        for x_TI, weight_OI, grad_TO in reversed(self._linears):
            grad_TO @ weight_OI
            grad_TO.t() @ x_TI


class Attention:
    """Causal attention of every layer, and its backward."""

    def __init__(self, shape: Shape, micro: int, dtype: torch.dtype) -> None:
        size = (micro, shape.heads, shape.seq, shape.hidden // shape.heads)
        self._layers = [
            [torch.randn(size).to(dtype).requires_grad_() for _ in range(3)]
            for _ in range(shape.layers)
        ]
        self._grad = torch.randn(size).to(dtype)

    def run(self) -> None:
        """All forwards, then all backwards."""
        outs = [F.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in self._layers]
        for out, (q, k, v) in zip(outs, self._layers, strict=True):
            torch.autograd.grad(out, (q, k, v), self._grad)
