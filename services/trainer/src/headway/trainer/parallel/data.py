"""Data parallelism over flat buffers.

Buckets are gathered before use and reduced after their gradients.

The switches decide when a call is issued and waited for, never which collectives there are or in
which order: if one is off, the same call is waited for at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from headway.common.node.failpoints import damage_at, failpoint
from headway.common.node.flight_record import WAITING
from headway.common.plan.schedule.actions import Kind
from headway.trainer.comm.interface import Comm, Done, Ticket
from headway.trainer.device.recorder import Recorder
from headway.trainer.state.flat import FlatChunk


class DataParallel:
    """The collectives of one generation over ``flats``, the buckets of this rank's chunks.

    A bucket's number counts over all chunks. ``names`` has the chunk of each and its number there,
    -1 if it is the only one: what its records have as chunk and micro-batch.
    """

    def __init__(
        self,
        flats: Sequence[FlatChunk],
        names: Sequence[tuple[int, int]],
        comm: Comm,
        recorder: Recorder,
        *,
        overlap_gather: bool,
        overlap_reduce: bool,
        reduce_in: torch.dtype | None = None,
    ) -> None:
        """``reduce_in``: the type in which gradients are summed, None for their own."""
        self._flats, self._names = flats, names
        self._comm, self._recorder = comm, recorder
        self._overlap_gather, self._overlap_reduce = overlap_gather, overlap_reduce
        self._reduce_in = reduce_in if comm.size > 1 else None
        self._gathers: dict[int, Ticket] = {}
        self._reduces: dict[int, Ticket] = {}
        self._complete: set[int] = set()

    def gather(self, bucket: int, step: int) -> None:
        """Issue the all-gather of ``bucket``'s parameters, unless ``gather_ahead`` has done so.

        The optimizer or ``load`` has converted them from the master weights. It is recorded here in
        either case, so that a step has the same records.

        It is skipped if ``gather_all`` or ``settle`` has just completed it: the master weights do
        not change until the optimizer of this step, and all ranks call them before the same steps.
        """
        if bucket in self._complete:
            self._complete.remove(bucket)
            return
        nbytes = self._flats[bucket].params.nbytes
        with self._record(Kind.ALL_GATHER, bucket, step, nbytes=nbytes) as sequence:
            if bucket not in self._gathers:
                self._issue_gather(bucket)
            self._recorder.name(sequence, self._gathers[bucket].collective)
        if not self._overlap_gather:
            self.ready(bucket, step)

    def gather_ahead(self, bucket: int) -> None:
        """Issue the all-gather for the next pass, since the optimizer has updated ``bucket``.

        All ranks update the same buckets in the same order, and a step that one of them skips is
        skipped by all. Only parameters are read and written, so a snapshot of the state may be
        taken meanwhile. Without overlap it does nothing.
        """
        if self._overlap_gather:
            self._issue_gather(bucket)

    def ready(self, bucket: int, step: int) -> None:
        """Wait until ``bucket``'s parameters are complete, unless that was done."""
        ticket = self._gathers.pop(bucket, None)
        if ticket is not None:
            self._wait(Kind.ALL_GATHER, bucket, step, ticket)

    def gather_all(self, step: int) -> None:
        """Gather the parameters of all buckets, for a pass outside of a training step."""
        self._gather_now(range(len(self._flats)), step)

    def settle(self, step: int) -> None:
        """Wait for the gathers that were issued ahead, because the next step is not due yet."""
        self._gather_now(list(self._gathers), step)

    def reduce(self, bucket: int, step: int) -> None:
        """Issue the reduce-scatter of ``bucket``'s gradients into its shard."""
        flat = self._flats[bucket]
        failpoint("worker.before_collective", step=step)
        grads, shard = flat.grads, flat.grad_shard
        if self._reduce_in is not None:
            grads = grads.to(self._reduce_in)
            shard = grads[flat.start : flat.stop]
        damage = damage_at("worker.reduce", step=step)
        if damage == "mismatch":
            grads, shard = grads[: -self._comm.size], shard[:-1]
        with self._record(Kind.REDUCE_SCATTER, bucket, step, nbytes=grads.nbytes) as sequence:
            is_skipped = damage == "skip"
            ticket = Done() if is_skipped else self._comm.reduce_scatter(shard, grads)
            self._recorder.name(sequence, ticket.collective)
        if self._reduce_in is not None:
            ticket = _Widened(ticket, shard, flat.grad_shard[: len(shard)])
        self._reduces[bucket] = ticket
        if not self._overlap_reduce:
            self._wait_reduce(bucket, step)

    def finish(self, step: int) -> None:
        """Wait for every reduction of the step."""
        for bucket in list(self._reduces):
            self._wait_reduce(bucket, step)

    def _gather_now(self, buckets: Sequence[int], step: int) -> None:
        for bucket in buckets:
            self.gather(bucket, step)
        for bucket in buckets:
            self.ready(bucket, step)
            self._complete.add(bucket)

    def _issue_gather(self, bucket: int) -> None:
        flat = self._flats[bucket]
        self._gathers[bucket] = self._comm.all_gather(flat.params, flat.param_shard)

    def _wait_reduce(self, bucket: int, step: int) -> None:
        self._wait(Kind.REDUCE_SCATTER, bucket, step, self._reduces.pop(bucket))

    def _wait(self, kind: Kind, bucket: int, step: int, ticket: Ticket) -> None:
        with self._record(kind, bucket, step, flags=WAITING, collective=ticket.collective):
            ticket.wait()

    def _record(
        self, kind: Kind, bucket: int, step: int, **more: int
    ) -> AbstractContextManager[int]:
        chunk, number = self._names[bucket]
        return self._recorder.record(kind, step=step, chunk=chunk, micro_batch=number, **more)


class _Widened:
    """The ticket of a reduction in a narrow type, whose ``wait`` widens the result."""

    def __init__(self, ticket: Ticket, narrow: torch.Tensor, wide: torch.Tensor) -> None:
        self._ticket, self._narrow, self._wide = ticket, narrow, wide
        self.collective = ticket.collective

    def done(self) -> bool:
        """Whether the reduction is done."""
        return self._ticket.done()

    def wait(self) -> None:
        """Wait for the reduction and copy its result."""
        self._ticket.wait()
        self._wide.copy_(self._narrow)
