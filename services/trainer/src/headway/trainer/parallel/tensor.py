"""Tensor-parallel ranks exchange activations by two collectives along the sequence.

Between layers each rank holds its piece of the sequence, [seq/tp, micro_batch, width] (sequence
parallelism, arXiv 2205.05198); inside, the whole sequence and its piece of the width.
``all_gather`` enters a layer, ``reduce_scatter`` leaves it; each is the other's backward.

With ``pieces`` above 1 the sequence is cut into so many pieces, each of which is split over the
ranks. A collective and the product next to it are done piece by piece, and the product of one runs
while the next one travels (MegaScale, arXiv 2402.15627, section 3.2). What is gathered lies in the
order of the sequence all the same, so that nothing is copied; a rank's rows are those of its parts
of the pieces. Rows are multiplied in other batches, so bits may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from headway.common.node.flight_record import WAITING
from headway.common.plan.schedule.actions import Kind
from headway.trainer.comm.interface import Comm, Done, SingleRank, Ticket
from headway.trainer.device.recorder import Recorder

RECORD_EVERY = (2, 4, 8, 16)
"""Steps between two whose collectives are recorded one by one, the more the more a step has. They
are counted in all steps; as records they would be most of a rank's: 6,000 a step for 175 billion
parameters."""
RECORDS_A_STEP = 256
"""So many may be recorded on average: where a step has few, more steps show who waits for whom."""
Product = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""The product of some rows, in the given memory or a new tensor."""
RowsProduct = Callable[[slice], torch.Tensor]
"""The product of the rows in a slice, as a new tensor."""


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

    def done(self) -> bool:
        """Whether ``wait`` would return at once."""
        return self._ticket.done()


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


class _All:
    """The ticket of several."""

    __slots__ = ("_parts", "collective")

    def __init__(self, parts: Sequence[Pending]) -> None:
        self._parts, self.collective = parts, 0

    def done(self) -> bool:
        return all(part.done() for part in self._parts)

    def wait(self) -> None:
        for part in self._parts:
            part.wait()


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
        self._num_waits, self._every = 0, RECORD_EVERY[-1]

    def record(self, recorder: Recorder | None, step: int = -1) -> None:
        """From now on, record the collectives of ``step``, if it is one of many; None: of none.

        All members have equally many of them, so they record the same steps, but for the first one
        after a member was replaced.
        """
        if recorder is None:
            self._every = _steps_between(self._num_waits)
        self._num_waits = 0
        self._recorder, self._step = None if step % self._every else recorder, step

    @property
    def rank(self) -> int:
        """This process's tensor-parallel coordinate."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """The tensor-parallel degree."""
        return self.comm.size

    def places(self, length: int) -> list[slice]:
        """Where this rank's rows of a sequence lie in it, one slice for each piece."""
        rows = length // self.size
        count = self._count(rows)
        size = rows // count
        starts = range(self.rank * size, length, self.size * size)
        return [slice(start, start + size) for start in starts]

    def join(self, piece: torch.Tensor) -> Pending:
        """Start joining pieces along the first dimension, in the order of ranks."""
        piece = piece.contiguous()
        whole = piece.new_empty((len(piece) * self.size, *piece.shape[1:]))
        ticket = self.comm.all_gather(whole.view(-1), piece.view(-1))
        return Pending(whole, self._with_record(ticket, whole), piece)

    def all_gather(self, x: torch.Tensor) -> Pending:
        """Start joining every rank's rows [seq/tp, ...] to the sequence [seq, ...].

        A group of one returns ``x`` itself.
        """
        if self.size == 1:
            return Pending(x, Done())
        whole, parts = self._gather(x)
        return Pending(whole, _All(parts))

    def reduce_scatter(self, partial: torch.Tensor) -> Pending:
        """Start summing partial [seq, ...] over ranks, leaving each its rows [seq/tp, ...].

        ``partial`` is overwritten.
        """
        if self.size == 1:
            return Pending(partial, Done())
        return self.matmul_scatter(len(partial), partial.__getitem__)

    def gather_matmul(
        self,
        x: torch.Tensor,
        *products: tuple[int, Product],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the gathered ``x`` [seq/tp, ...], and ``product(whole, None)`` for each product.

        Products come with their widths. ``product(rows, out)`` is called for pieces of the whole
        with the memory for its result. ``meanwhile`` runs once during the collective.
        """
        if self.size == 1 or self._count(len(x)) == 1:
            pending = self.all_gather(x)
            meanwhile()
            whole = pending.wait()
            return whole, [product(whole, None) for _, product in products]
        whole, parts = self._gather(x)
        meanwhile()
        found = [whole.new_empty((*whole.shape[:-1], width)) for width, _ in products]
        for number, part in enumerate(parts):
            rows = part.wait()
            for out, (_, product) in zip(found, products, strict=True):
                product(rows, out.chunk(len(parts))[number])
        return whole, found

    def matmul_scatter(self, length: int, product: RowsProduct) -> Pending:
        """Start the reduce-scatter of ``product(rows)`` of all rows, ``length`` in number."""
        if self.size == 1:
            return self.reduce_scatter(product(slice(None)))
        count = self._count(length // self.size)
        size, parts = length // count, []
        mine: torch.Tensor | None = None
        for number in range(count):
            partial = product(slice(number * size, (number + 1) * size)).contiguous()
            if mine is None:
                mine = partial.new_empty((length // self.size, *partial.shape[1:]))
            out = mine.chunk(count)[number]
            ticket = self.comm.reduce_scatter(out.view(-1), partial.view(-1))
            parts.append(Pending(out, self._with_record(ticket, partial), partial))
        assert mine is not None
        return Pending(mine, _All(parts))

    def _gather(self, x: torch.Tensor) -> tuple[torch.Tensor, list[Pending]]:
        """The sequence, and what is pending of each of its pieces."""
        x, count = x.contiguous(), self._count(len(x))
        whole = x.new_empty((len(x) * self.size, *x.shape[1:]))
        parts = []
        for out, piece in zip(whole.chunk(count), x.chunk(count), strict=True):
            ticket = self.comm.all_gather(out.view(-1), piece.view(-1))
            parts.append(Pending(out, self._with_record(ticket, out), piece))
        return whole, parts

    def _count(self, rows: int) -> int:
        """Pieces in which a rank's rows travel; a text that cannot be cut so travels whole."""
        return 1 if rows % self.pieces else self.pieces

    def _with_record(self, ticket: Ticket, whole: torch.Tensor) -> Ticket:
        self._num_waits += 1
        if self._recorder is None:
            return ticket
        return _Recorded(ticket, self._recorder, self._step, whole.nbytes)


def _steps_between(num_waits: int) -> int:
    """The steps from one that is recorded to the next, by the collectives of a step."""
    few = [every for every in RECORD_EVERY if num_waits <= RECORDS_A_STEP * every]
    return few[0] if few else RECORD_EVERY[-1]
