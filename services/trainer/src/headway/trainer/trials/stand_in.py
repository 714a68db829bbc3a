"""A chunk that sleeps where the real one computes, and sends what the real one sends.

On a machine with fewer cores than ranks, ranks compute in turns: a message that is hidden behind
one rank's computation takes a core from another's, and overlap gains nothing. A sleeping rank takes
no core. So a stand-in shows what overlap gives where every rank has a processor of its own. What is
real: the schedule, messages between stages, collectives of every group in their true sizes, and the
zeroing, norm and optimizer of the flat buffers. Losses mean nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from headway.trainer.comm.interface import Ticket
from headway.trainer.model.buckets import BucketHook
from headway.trainer.model.chunk import Chunk, Forward
from headway.trainer.trials.passes import Moment, Pass, Passes

LEAST_SLEEP_S = 2e-4
"""Shorter computations are slept together with the next ones: waking up takes some 50 us."""


class _Played(Forward):
    """A forward that was played, and what is called behind the buckets of its backward."""

    __slots__ = ("after_bucket",)

    def __init__(self, output: torch.Tensor) -> None:
        super().__init__(output, None)
        self.after_bucket: BucketHook | None = None


class SleepingChunk:
    """A ``Chunk`` that plays recorded passes; everything but them is that of ``chunk``."""

    def __init__(self, chunk: Chunk, passes: Passes, micro_batch_size: int) -> None:
        self._chunk, self._passes, self._size = chunk, passes, micro_batch_size
        self._owed_s = 0.0
        self._buffers: dict[tuple[int, str], torch.Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chunk, name)

    def forward(
        self, x: torch.Tensor, *_: Any, before_bucket: BucketHook = lambda _: None, **__: Any
    ) -> Forward:
        """Play the pass; the output is zero."""
        del x
        self._play(self._passes["forward"], before_bucket)
        output = torch.zeros((), dtype=torch.float64) if self._chunk.is_last else self._activation()
        return _Played(output)

    def backward(
        self,
        fwd: _Played,
        grad_output: torch.Tensor | None = None,
        *,
        weight: bool = True,
        after_bucket: BucketHook | None = None,
    ) -> torch.Tensor | None:
        """Play the pass; the gradient is zero, None on the first stage."""
        del grad_output
        fwd.after_bucket = after_bucket
        self._play(self._passes["backward" if weight else "backward_input"], after_bucket)
        return None if self._chunk.is_first else self._activation()

    def backward_weight(self, fwd: _Played) -> None:
        """Play the pass."""
        self._play(self._passes["backward_weight"], fwd.after_bucket)

    def _activation(self) -> torch.Tensor:
        shape, dtype = self._chunk.activation_shape(self._size), self._chunk.precision.param_dtype
        return torch.zeros(shape, dtype=dtype)

    def _play(self, moments: Pass, at_bucket: BucketHook | None) -> None:
        calls: dict[int, Ticket] = {}
        number = 0
        for moment in moments:
            if moment.kind == "compute":
                self._sleep(moment.seconds)
            elif moment.kind == "wait":
                if moment.call in calls:
                    calls.pop(moment.call).wait()
            elif moment.kind in ("before_bucket", "after_bucket"):
                if at_bucket is not None:
                    at_bucket(moment.call)
            else:
                calls[number] = self._issue(moment)
                number += 1
        for ticket in calls.values():
            ticket.wait()

    def _sleep(self, seconds: float) -> None:
        """Sleep so long on average: what a sleep takes too long is taken off the next one."""
        self._owed_s += seconds
        if self._owed_s >= LEAST_SLEEP_S:
            began_s = time.perf_counter()
            time.sleep(self._owed_s)
            self._owed_s -= time.perf_counter() - began_s

    def _issue(self, moment: Moment) -> Ticket:
        """Issue a collective of zeros.

        Calls of one size share their buffers: they run in order, and zeros stay zeros.
        """
        comm = self._chunk.tp.comm
        whole = self._buffer(moment.numel, moment.dtype)
        if moment.kind == "all_reduce":
            return comm.all_reduce(whole)
        shard = self._buffer(moment.numel // comm.size, moment.dtype)
        if moment.kind == "all_gather":
            return comm.all_gather(whole, shard)
        return comm.reduce_scatter(shard, whole)

    def _buffer(self, numel: int, dtype: str) -> torch.Tensor:
        key = numel, dtype
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(numel, dtype=getattr(torch, dtype))
        return self._buffers[key]


def sleeping(
    chunks: Sequence[Chunk], passes: Sequence[Passes], micro_batch_size: int
) -> list[Chunk]:
    """Stand-ins for the chunks of a rank."""
    return [
        SleepingChunk(chunk, own, micro_batch_size)  # type: ignore[misc]
        for chunk, own in zip(chunks, passes, strict=True)
    ]
