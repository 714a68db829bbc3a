"""Activations to the loss: final norm, projection to the vocabulary, cross-entropy.

The logits of a micro-batch never exist as a whole: they are made for a block of tokens, turned into
the loss and their own gradient, multiplied by the weight for the gradients of the input and of the
weight, and dropped. So the forward does what the backward would do with kept logits. Shapes: labels
and mask [micro_batch, seq]; activations [seq/tp, micro_batch, hidden]; T = tokens of a micro-batch,
V = this rank's piece of the vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from headway.trainer.model.kernels import Kernels
from headway.trainer.model.layers import Norm
from headway.trainer.model.loss import cross_entropy
from headway.trainer.model.matmul import add_weight_grad, input_grad, linear
from headway.trainer.model.tape import Tape
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.params import Parameter

BLOCK_ELEMENTS = 1 << 23
"""Most logits of a block on a CPU: 16 MiB in bf16. A GPU takes 16 times as many, for products that
fill it."""
LEAST_TOKENS = 256
"""Fewest tokens of a block on a CPU, and a sixteenth of those on a GPU: each block passes over the
whole weight and its gradient."""


class Head:
    """``forward`` returns the loss and keeps its gradient for ``backward``."""

    def __init__(
        self,
        norm: Norm,
        weight: Parameter,
        tp: TensorParallel,
        kernels: Kernels,
        *,
        vocab_size: int,
    ) -> None:
        """``weight``'s rows beyond ``vocab_size`` are padding and never used."""
        self.norm, self.weight, self.tp, self.kernels = norm, weight, tp, kernels
        self._vocab_size = vocab_size

    def logits(self, x: torch.Tensor, position: int) -> torch.Tensor:
        """Return this rank's logits of one position, in the type of the product.

        They are [micro_batch, rows of the table], -inf where they are padding.
        """
        whole = self.tp.all_gather(self.norm.forward(x, None)).wait()
        logits = linear(whole[position], self._table(), rounded=False)
        return F.pad(logits, (0, len(self.weight.data) - logits.shape[1]), value=-torch.inf)

    def forward(
        self,
        x: torch.Tensor,
        labels: torch.Tensor,
        mask: torch.Tensor,
        tape: Tape | None,
        loss_scale: float,
    ) -> torch.Tensor:
        """Return the sum of the masked tokens' losses, an fp64 scalar, equal on all tp ranks.

        With a tape, the gradients of ``loss_scale`` times the sum are computed, too.
        """
        whole = self.tp.all_gather(self.norm.forward(x, tape)).wait().flatten(0, 1)  # [T, hidden]
        labels_T, mask_T = labels.t().flatten().long(), mask.t().flatten()
        partial = torch.empty_like(whole) if tape is not None else None
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        size = self._block_size(len(whole))
        for start in range(0, len(whole), size):
            rows = slice(start, start + size)
            total += self._block(
                whole[rows],
                labels_T[rows],
                mask_T[rows],
                None if partial is None else partial[rows],
                loss_scale,
            )
        if tape is not None and partial is not None:  # this rank's piece is all that is kept
            tape.push(self.tp.reduce_scatter(partial.view(-1, *x.shape[1:])).wait())
        return total

    def backward(self, tape: Tape) -> torch.Tensor:
        """Gradient with respect to x."""
        return self.norm.backward(tape.pop(), tape)

    def _block(
        self,
        x: torch.Tensor,
        labels: torch.Tensor,
        mask: torch.Tensor,
        grad_x: torch.Tensor | None,
        loss_scale: float,
    ) -> torch.Tensor:
        """The loss of a block of tokens; its gradients go to ``grad_x`` and to the weight."""
        weight, rows = self._table(), len(self.weight.data)
        logits = linear(x, weight, rounded=False)
        loss = cross_entropy(
            logits,
            labels,
            mask.to(self.weight.grad.dtype),
            self.tp,
            self.kernels,
            first=self.tp.rank * rows,
            with_grad=grad_x is not None,
        )
        if grad_x is not None:  # the logits are their gradient now
            torch.mul(input_grad(logits, weight), loss_scale, out=grad_x)
            add_weight_grad(self.weight.grad[: len(weight)], logits, x, loss_scale)
        return loss

    def _table(self) -> torch.Tensor:
        """This rank's rows that are tokens, [V, hidden]."""
        rows = len(self.weight.data)
        return self.weight.data[: max(0, self._vocab_size - self.tp.rank * rows)]

    def _block_size(self, num_tokens: int) -> int:
        """Tokens of a block: equal blocks, as few as the bound allows."""
        factor = 1 if self.weight.data.device.type == "cpu" else 16
        most = max(LEAST_TOKENS * factor, BLOCK_ELEMENTS * factor // len(self.weight.data))
        num_blocks = -(-num_tokens // most)
        return -(-num_tokens // num_blocks)
