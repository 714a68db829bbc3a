"""The table of a tied model when embedding and head are on different pipeline ranks.

The first stage owns it: parameter, gradient and optimizer state. In each pass it sends the table to
the last stage, which needs it for its first forward there, and receives its gradient back before
its own is reduced, so that there is one copy in checkpoints and none to keep equal. Both messages
run beside the pass (Megatron-LM instead keeps two copies and sums their gradients with an
all-reduce, arXiv 2104.04473, section 3.1). Within one rank both layers share the parameter itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from headway.common.node.flight_record import WAITING
from headway.common.plan.collectives import GroupKind
from headway.common.plan.schedule.actions import Kind
from headway.trainer.comm.interface import Ticket
from headway.trainer.comm.p2p import PipeComm
from headway.trainer.device.recorder import Recorder
from headway.trainer.model.chunk import Chunk
from headway.trainer.state.params import Parameter

TABLE_TAG, GRADIENT_TAG = 0xFF << 1, 0xFF << 1 | 1
"""Those of a chunk number that no message between stages has (``messages.tag_of``)."""


class TiedTable:
    """One generation's messages; every method does nothing on ranks without part in them.

    ``is_used``: embedding and head share a table and are on different pipeline ranks.

    ``begin`` -> ``ready`` before each computation -> ``reduce`` before each chunk's reduction, in a
    training pass -> ``finish``.
    """

    def __init__(
        self, chunks: Sequence[Chunk], pipe: PipeComm, recorder: Recorder, *, is_used: bool
    ) -> None:
        self._pipe, self._recorder, self._last = pipe, recorder, len(chunks) - 1
        self._step = 0
        self._table: Parameter | None = None
        self._is_owner = pipe.rank == 0
        self._is_unsent = False
        self._arriving: Ticket | None = None
        self._sent: list[Ticket] = []
        if is_used:
            head = chunks[-1].head
            self._table = chunks[0].table if self._is_owner else head.weight if head else None

    def begin(self, step: int) -> None:
        """Start a pass of ``step``: the last stage expects the table and waits for it later."""
        self._step = step
        if self._table is None:
            return
        if self._is_owner:
            self._is_unsent = True
        else:
            self._table.grad.zero_()
            self._arriving = self._pipe.recv(
                "backward", self._table.data, 0, TABLE_TAG, GroupKind.TIED_TABLE
            )

    def ready(self, chunk: int) -> None:
        """Send the table, or wait for it, before a computation of ``chunk``.

        The parameters of ``chunk`` are complete by then.
        """
        if self._is_unsent and chunk == 0:
            assert self._table is not None
            self._is_unsent = False
            last = self._pipe.size - 1
            self._sent.append(
                self._pipe.send("backward", self._table.data, last, TABLE_TAG, GroupKind.TIED_TABLE)
            )
        if self._arriving is not None and chunk == self._last:
            self._wait(self._arriving, Kind.ALL_GATHER, chunk)
            self._arriving = None

    def exchange(self, step: int) -> None:
        """A whole pass without computations, after which the last stage has the table."""
        self.begin(step)
        for chunk in range(self._last + 1):
            self.ready(chunk)
        self.finish()

    def reduce(self, chunk: int) -> None:
        """Before ``chunk``'s gradients are reduced: send the table's, or add the one that comes."""
        if self._table is None:
            return
        grad = self._table.grad
        if self._is_owner and chunk == 0:
            other = torch.empty_like(grad)
            last = self._pipe.size - 1
            ticket = self._pipe.recv("forward", other, last, GRADIENT_TAG, GroupKind.TIED_GRADIENT)
            self._wait(ticket, Kind.REDUCE_SCATTER, chunk)
            grad.add_(other)
        elif not self._is_owner and chunk == self._last:
            self._sent.append(
                self._pipe.send("forward", grad, 0, GRADIENT_TAG, GroupKind.TIED_GRADIENT)
            )

    def apart(self, chunk: int) -> torch.Tensor | None:
        """The table's gradient on the last stage, which no flat buffer holds; None elsewhere."""
        if self._table is None or self._is_owner or chunk != self._last:
            return None
        return self._table.grad

    def finish(self) -> None:
        """End a pass: what was sent may change now."""
        for ticket in self._sent:
            self._wait(ticket, Kind.REDUCE_SCATTER, self._last)
        self._sent.clear()

    def _wait(self, ticket: Ticket, kind: Kind, chunk: int) -> None:
        """Recorded as the collective of parameters or gradients that it stands for."""
        name = ticket.collective
        with self._recorder.record(
            kind, step=self._step, chunk=chunk, flags=WAITING, collective=name
        ):
            ticket.wait()
