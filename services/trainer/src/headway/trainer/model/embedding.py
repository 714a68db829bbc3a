"""Tokens to activations: a table split over tensor parallelism by rows of the vocabulary.

Shapes: tokens [micro_batch, seq]; activations [seq/tp, micro_batch, hidden].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from headway.trainer.model.positions import Positions
from headway.trainer.model.tape import RowsGrad, Tape
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.state.params import Parameter


class Embedding:
    """Maps each token to its row of the table.

    The reduce-scatter that sums the ranks also splits the sequence.
    """

    def __init__(
        self, weight: Parameter, tp: TensorParallel, positions: Parameter | None = None
    ) -> None:
        """``positions``: a learned row for each place in a sequence, [max seq, hidden]."""
        self.weight, self.tp, self.positions = weight, tp, positions

    def forward(self, tokens: torch.Tensor, at: Positions, tape: Tape | None) -> torch.Tensor:
        """Tokens to activations."""
        rows = None if self.positions is None else self._rows(at, tokens.shape[1])
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
            tape.push((local, absent, rows))
        x = self.tp.reduce_scatter(partial).wait()
        if self.positions is not None:
            assert rows is not None
            x.add_(F.embedding(rows, self.positions.data))
        return x

    def backward(self, grad: torch.Tensor, tape: Tape) -> None:
        """Queue the weight gradient on the tape; tokens have no gradient."""
        local, absent, rows = tape.pop()
        pending = self.tp.all_gather(grad)
        tape.flush()
        tape.queue(RowsGrad(self.weight, pending, local, absent))
        if self.positions is not None:
            tape.queue(RowsGrad(self.positions, grad, rows.expand(grad.shape[:2]), None))

    def _rows(self, at: Positions, length: int) -> torch.Tensor:
        """Places of this rank's rows in the sequence, [seq/tp, 1 or micro_batch]."""
        index = at.index
        if index is None:
            index = torch.arange(length, device=self.weight.data.device)[:, None]
        parts = [index[one] for one in self.tp.places(length)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
