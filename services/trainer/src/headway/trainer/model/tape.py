"""What the forward of a micro-batch saves for its backward, and the weight gradients that wait.

The model computes its backward by hand: each layer's ``forward`` pushes what its ``backward`` pops,
in reverse order. Weight gradients are not part of that chain. A layer queues them as data, and they
are added while a collective runs, at the latest when ``backward`` returns, or, if deferred, as an
action of their own (zero-bubble schedules, arXiv 2401.10241). Either way the same operations run on
the same tensors in the same order, so the bits are equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from headway.trainer.model.matmul import add_weight_grad
from headway.trainer.parallel.tensor import Pending
from headway.trainer.state.params import Parameter

Kept: TypeAlias = "torch.Tensor | Callable[[], torch.Tensor]"
"""A tensor that a backward needs, or the cheap function that computes it again, bit for bit."""


def value(kept: Kept) -> torch.Tensor:
    """The tensor behind ``kept``."""
    return kept if isinstance(kept, torch.Tensor) else kept()


class WeightGrad(Protocol):
    """A weight gradient that waits, with the tensors that it needs."""

    def add(self) -> None:
        """Add it to the parameter's ``grad``."""


@dataclass(slots=True)
class MatmulGrad:
    """Gradient of a matrix: ``weight.grad[O, I] += scale * grad[..., O]^T @ x[..., I]``."""

    weight: Parameter
    grad: Kept
    x: Kept | Pending
    scale: float = 1.0

    def add(self) -> None:
        """Multiply and add; waits for an ``x`` that is still being gathered."""
        x = self.x.wait() if isinstance(self.x, Pending) else value(self.x)
        add_weight_grad(self.weight.grad, value(self.grad), x, self.scale)


@dataclass(slots=True)
class VectorGrad:
    """Gradient of a vector, already computed."""

    weight: Parameter
    grad: torch.Tensor

    def add(self) -> None:
        """Add in the master type."""
        self.weight.grad.add_(self.grad)


@dataclass(slots=True)
class RowsGrad:
    """Gradient of a table: adds ``grad[T, width]`` to rows ``rows`` [T], none where ``absent``."""

    weight: Parameter
    grad: torch.Tensor | Pending
    rows: torch.Tensor
    absent: torch.Tensor | None

    def add(self) -> None:
        """Add equal rows in a fixed order on every device (index_add_ does not on GPUs)."""
        whole = self.grad.wait() if isinstance(self.grad, Pending) else self.grad
        values = whole.to(self.weight.grad.dtype)
        if self.absent is not None:
            values = values.masked_fill(self.absent[..., None], 0.0)
        self.weight.grad.index_put_((self.rows.flatten(),), values.flatten(0, -2), accumulate=True)


class Tape:
    """One micro-batch's saved tensors (a stack) and waiting weight gradients (a queue)."""

    __slots__ = ("_saved", "_waiting", "deferred")

    def __init__(self) -> None:
        self._saved: list[Any] = []
        self._waiting: deque[WeightGrad] = deque()
        self.deferred = False
        """True defers weight gradients until ``finish``."""

    def push(self, saved: Any) -> None:
        """Keep ``saved`` for the backward of the same layer."""
        self._saved.append(saved)

    def pop(self) -> Any:
        """Take back what the forward of this layer pushed."""
        return self._saved.pop()

    def queue(self, grad: WeightGrad) -> None:
        """Queue a weight gradient."""
        self._waiting.append(grad)

    def adopt(self, other: Tape) -> None:
        """Take over the weight gradients that wait on ``other``."""
        self._waiting.extend(other._waiting)
        other._waiting.clear()

    def flush(self) -> None:
        """Add waiting weight gradients, unless deferred. Called while a collective runs."""
        if not self.deferred:
            self.finish()

    def finish(self) -> None:
        """Add waiting weight gradients in order; each releases its tensors when done."""
        while self._waiting:
            self._waiting.popleft().add()

    @property
    def is_empty(self) -> bool:
        """True if nothing is saved or waits."""
        return not self._saved and not self._waiting
