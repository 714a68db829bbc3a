"""Tensor-parallel ranks exchange activations by two collectives along the sequence.

Between layers each rank holds its piece of the sequence, [seq/tp, micro_batch, width] (sequence
parallelism, arXiv 2205.05198); inside, the whole sequence and its piece of the width.
``all_gather`` enters a layer, ``reduce_scatter`` leaves it; each is the other's backward.

With ``pieces`` above 1 a collective and the product next to it are cut along the sequence, and the
product of one piece runs while the next one travels (MegaScale, arXiv 2402.15627, section 3.2).
That is another algorithm: rows are multiplied in other batches, so bits may differ.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from headway.common.node.flight_record import WAITING
from headway.common.plan.schedule.actions import Kind
from headway.trainer.comm.interface import Comm, Done, SingleRank, Ticket
from headway.trainer.device.recorder import Recorder

RECORD_EVERY = 16
"""Steps between two whose collectives are recorded one by one. They are counted in all steps; as
records they would be most of a rank's: 6,000 a step for 175 billion parameters."""
Product = Callable[[torch.Tensor], torch.Tensor]


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


class _Recorded:
    """A ticket that records the wait for it."""

    __slots__ = ("_fields", "_recorder", "_ticket", "collective")

    def __init__(self, ticket: Ticket, recorder: Recorder, step: int, nbytes: int) -> None:
        self._ticket, self._recorder, self.collective = ticket, recorder, ticket.collective
        self._fields = {"step": step, "nbytes": nbytes, "collective": ticket.collective}

    def done(self) -> bool:
        return self._ticket.done()

    def wait(self) -> None:
        with self._recorder.record(Kind.TENSOR_PARALLEL, flags=WAITING, **self._fields):
            self._ticket.wait()


class PendingPieces:
    """A tensor [seq/tp, ...] whose pieces are in transit."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: list[Pending]) -> None:
        self._pieces = pieces

    def wait(self) -> torch.Tensor:
        """The pieces, joined."""
        return torch.cat([piece.wait() for piece in self._pieces])


class TensorParallel:
    """The tensor-parallel group of this rank; only ``comm`` changes with a generation.

    With ``keeps_whole`` layers keep what they have gathered until their weight gradients are
    computed; else their pieces of it, which they gather again.
    """

    def __init__(
        self, comm: Comm | None = None, *, pieces: int = 1, keeps_whole: bool = False
    ) -> None:
        self.comm: Comm = SingleRank() if comm is None else comm
        self.pieces, self.keeps_whole = pieces, keeps_whole
        self._recorder: Recorder | None = None
        self._step = -1

    def record(self, recorder: Recorder | None, step: int = -1) -> None:
        """From now on, record the collectives of ``step``, if it is one of many; None: of none."""
        self._recorder, self._step = None if step % RECORD_EVERY else recorder, step

    @property
    def rank(self) -> int:
        """This process's tensor-parallel coordinate."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """The tensor-parallel degree."""
        return self.comm.size

    def all_gather(self, piece: torch.Tensor) -> Pending:
        """Start joining [seq/tp, ...] pieces to [seq, ...].

        A group of one returns ``piece`` itself.
        """
        if self.size == 1:
            return Pending(piece, Done())
        piece = piece.contiguous()
        whole = piece.new_empty((piece.shape[0] * self.size, *piece.shape[1:]))
        ticket = self.comm.all_gather(whole.view(-1), piece.view(-1))
        return Pending(whole, self._with_record(ticket, whole), piece)

    def reduce_scatter(self, partial: torch.Tensor) -> Pending:
        """Start summing partial [seq, ...] over ranks, leaving each its [seq/tp, ...].

        ``partial`` is overwritten.
        """
        if self.size == 1:
            return Pending(partial, Done())
        partial = partial.contiguous()
        piece = partial.new_empty((partial.shape[0] // self.size, *partial.shape[1:]))
        ticket = self.comm.reduce_scatter(piece.view(-1), partial.view(-1))
        return Pending(piece, self._with_record(ticket, partial), partial)

    def _with_record(self, ticket: Ticket, whole: torch.Tensor) -> Ticket:
        if self._recorder is None:
            return ticket
        return _Recorded(ticket, self._recorder, self._step, whole.nbytes)

    def gather_matmul(
        self, x: torch.Tensor, product: Product, meanwhile: Callable[[], None] = lambda: None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``(whole, product(whole))`` of the gathered ``x`` [seq/tp, ...].

        ``meanwhile`` runs once during the collective.
        """
        if self.size == 1 or self.pieces == 1:
            pending = self.all_gather(x)
            meanwhile()
            whole = pending.wait()
            return whole, product(whole)
        cuts = [self.all_gather(cut) for cut in x.tensor_split(self.pieces) if len(cut)]
        meanwhile()
        gathered, products = [], []
        for pending in cuts:
            piece = pending.wait()
            gathered.append(_by_rank(piece, self.size))
            products.append(_by_rank(product(piece), self.size))
        return torch.cat(gathered, 1).flatten(0, 1), torch.cat(products, 1).flatten(0, 1)

    def matmul_scatter(self, x: torch.Tensor, product: Product) -> Pending | PendingPieces:
        """Start the reduce-scatter of ``product(x)``, x [seq, ...]."""
        if self.size == 1 or self.pieces == 1:
            return self.reduce_scatter(product(x))
        cuts = _by_rank(x, self.size).tensor_split(self.pieces, 1)
        return PendingPieces(
            [self.reduce_scatter(product(cut.flatten(0, 1))) for cut in cuts if cut.shape[1]]
        )


def _by_rank(whole: torch.Tensor, size: int) -> torch.Tensor:
    """[seq, ...] as [tp, seq/tp, ...]."""
    return whole.view(size, -1, *whole.shape[1:])
