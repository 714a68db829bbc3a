"""The two ends of the model: tokens to activations, and activations to the loss.

Both are split over tensor parallelism along the vocabulary. Shapes: tokens, labels, mask
[micro_batch, seq]; activations [seq/tp, micro_batch, hidden].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from headway.trainer.model.layers import LayerNorm
from headway.trainer.model.loss import cross_entropy
from headway.trainer.model.matmul import accumulate, times, times_transposed
from headway.trainer.model.tape import Tape
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.params import Parameter


class Embedding:
    """Row ``token`` of a table split by rows; the scatter that sums the ranks also
    splits the sequence."""

    def __init__(self, weight: Parameter, tp: TensorParallel) -> None:
        self.weight, self.tp = weight, tp

    def forward(self, tokens: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """Tokens to activations."""
        tokens = tokens.t().long()  # [seq, micro_batch]
        num_rows = len(self.weight.data)
        local = tokens - self.tp.rank * num_rows
        absent = (local < 0) | (local >= num_rows) if self.tp.size > 1 else None
        if absent is not None:
            local = local.masked_fill(absent, 0)
        partial = F.embedding(local, self.weight.data)
        if absent is not None:
            partial.masked_fill_(absent[..., None], 0.0)
        if tape is not None:
            tape.push((local, absent))
        return self.tp.scatter(partial).wait()

    def backward(self, grad: torch.Tensor, tape: Tape) -> None:
        """Queue the weight gradient on the tape; tokens have no gradient."""
        local, absent = tape.pop()
        pending = self.tp.gather(grad)
        tape.flush()
        whole = pending.wait()

        def add() -> None:
            rows = whole.to(self.weight.grad.dtype)
            if absent is not None:
                rows = rows.masked_fill(absent[..., None], 0.0)
            # index_put_ adds equal tokens in a fixed order on every device;
            # index_add_ does not on GPUs.
            self.weight.grad.index_put_((local.flatten(),), rows.flatten(0, 1), accumulate=True)

        tape.later(add)


class Head:
    """Final norm, projection to the vocabulary, loss; its forward computes the
    gradient of the logits."""

    def __init__(self, norm: LayerNorm, weight: Parameter, tp: TensorParallel) -> None:
        self.norm, self.weight, self.tp = norm, weight, tp

    def logits(
        self, x: torch.Tensor, tape: Tape | None = None, position: int | None = None
    ) -> torch.Tensor:
        """This rank's logits [seq, micro_batch, vocab/tp], in the compute type or its kernel's;
        with ``position``, of that position only: [micro_batch, vocab/tp]."""
        whole = self.tp.gather(self.norm.forward(x, tape)).wait()
        if position is not None:
            whole = whole[position]
        if tape is not None:
            tape.push(whole)
        return times_transposed(whole, self.weight.data, rounded=False)

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor, tape: Tape | None
    ) -> torch.Tensor:
        """Sum of the masked tokens' losses, fp64 scalar, equal on all tp ranks."""
        logits = self.logits(x, tape).flatten(0, 1)
        loss_sum = cross_entropy(
            logits,
            labels.t().flatten().long(),
            mask.t().flatten().to(self.weight.grad.dtype),
            self.tp,
            with_grad=tape is not None,
        )
        if tape is not None:
            tape.push(logits)
        return loss_sum

    def backward(self, loss_scale: float, tape: Tape) -> torch.Tensor:
        """Gradient of ``loss_scale * loss_sum`` with respect to x."""
        grad, whole = tape.pop(), tape.pop()
        tape.later(lambda: accumulate(self.weight.grad, grad, whole, loss_scale))
        partial = times(grad, self.weight.data).mul_(loss_scale).view(whole.shape)
        pending = self.tp.scatter(partial)
        tape.flush()
        return self.norm.backward(pending.wait(), tape)
