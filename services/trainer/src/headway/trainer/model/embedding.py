"""Tokens to activations: a table split over tensor parallelism by rows of the vocabulary.

Shapes: tokens [micro_batch, seq]; activations [seq/tp, micro_batch, hidden].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from headway.trainer.model.tape import RowsGrad, Tape
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.params import Parameter


class Embedding:
    """Row ``token`` of the table; the reduce-scatter that sums the ranks also splits the
    sequence."""

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
        return self.tp.reduce_scatter(partial).wait()

    def backward(self, grad: torch.Tensor, tape: Tape) -> None:
        """Queue the weight gradient on the tape; tokens have no gradient."""
        local, absent = tape.pop()
        pending = self.tp.all_gather(grad)
        tape.flush()
        tape.wait(RowsGrad(self.weight, pending, local, absent))
