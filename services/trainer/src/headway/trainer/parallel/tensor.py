"""Tensor-parallel ranks exchange activations by two collectives along the sequence.

Between layers each rank holds its piece of the sequence, [seq/tp, micro_batch, width] (sequence
parallelism, arXiv 2205.05198); inside, the whole sequence and its piece of the width. ``gather``
enters a layer, ``scatter`` leaves it; each is the other's backward.
"""

from __future__ import annotations

import torch
from headway.trainer.comm.interface import Comm, Done, Solo, Ticket


class Pending:
    """A tensor in transit. It keeps the source alive, because the call may still read it."""

    __slots__ = ("_source", "_tensor", "_ticket")

    def __init__(
        self, tensor: torch.Tensor, ticket: Ticket, source: torch.Tensor | None = None
    ) -> None:
        self._tensor, self._ticket, self._source = tensor, ticket, source

    def wait(self) -> torch.Tensor:
        """The finished tensor.

        Raises:
            Aborted: the generation was fenced.
        """
        self._ticket.wait()
        self._source = None
        return self._tensor


class TensorParallel:
    """The tensor-parallel group of this rank; only ``comm`` changes with a generation."""

    def __init__(self, comm: Comm | None = None) -> None:
        self.comm: Comm = Solo() if comm is None else comm

    @property
    def rank(self) -> int:
        """This process's tensor-parallel coordinate."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """The tensor-parallel degree."""
        return self.comm.size

    def gather(self, piece: torch.Tensor) -> Pending:
        """Start joining [seq/tp, ...] pieces to [seq, ...]. A group of one
        returns ``piece`` itself."""
        if self.size == 1:
            return Pending(piece, Done())
        piece = piece.contiguous()
        whole = piece.new_empty((piece.shape[0] * self.size, *piece.shape[1:]))
        return Pending(whole, self.comm.all_gather(whole.view(-1), piece.view(-1)), piece)

    def scatter(self, partial: torch.Tensor) -> Pending:
        """Start summing partial [seq, ...] over ranks, leaving each its [seq/tp, ...].
        ``partial`` is overwritten."""
        if self.size == 1:
            return Pending(partial, Done())
        partial = partial.contiguous()
        piece = partial.new_empty((partial.shape[0] // self.size, *partial.shape[1:]))
        return Pending(piece, self.comm.reduce_scatter(piece.view(-1), partial.view(-1)), partial)
