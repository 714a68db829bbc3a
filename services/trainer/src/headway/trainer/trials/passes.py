"""Records what a chunk's passes do over time: computations, collectives, and waits for them.

The real chunk runs alone in one process. Its collectives over tensor-parallel ranks reach no other
rank (``Echo``), and what it computes between two of them is timed. Played back
(``trials.stand_in``), a pass issues the same collectives in the same order and sleeps where the
chunk computed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from headway.common.plan.grid import Coordinates
from headway.trainer.comm.interface import Done, Op, Ticket
from headway.trainer.config import RunConfig
from headway.trainer.model.chunk import Chunk
from headway.trainer.model.rehearsal import Echo
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.session.build import build_model

REPEATS = 5
"""Times that each pass is recorded; a moment takes the median of them."""
WARMUP = 2
"""Passes before those: they fill caches and compile kernels."""


@dataclass(frozen=True)
class Moment:
    """One thing that a pass does."""

    kind: Literal[
        "compute",
        "all_gather",
        "reduce_scatter",
        "all_reduce",
        "wait",
        "before_bucket",
        "after_bucket",
    ]
    seconds: float = 0.0
    """Duration of a computation."""
    numel: int = 0
    """Elements of a collective's whole tensor, on all ranks of the group together."""
    dtype: str = ""
    """Their type, such as ``float32``."""
    call: int = 0
    """Which of the pass's collectives is waited for, from 0; or which bucket of the chunk it is."""


Pass = list[Moment]
Passes = dict[str, Pass]
"""By name: ``forward``, ``backward``, and with a schedule that splits the backward
``backward_input`` and ``backward_weight`` in its place."""


class Recording(Echo):
    """A group whose members send nothing; notes every call and the time between two of them."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._moments: Pass = []
        self._calls, self._since_s = 0, 0.0

    def record(self, run: Callable[[], object]) -> Pass:
        """Return what ``run`` does."""
        self._moments, self._calls = [], 0
        self._since_s = time.perf_counter()
        run()
        self._computed()
        return self._moments

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor) -> Ticket:
        """See ``Comm``."""
        return self._call("all_gather", out, lambda: super(Recording, self).all_gather(out, shard))

    def reduce_scatter(self, out: torch.Tensor, flat: torch.Tensor) -> Ticket:
        """See ``Comm``."""
        return self._call(
            "reduce_scatter", flat, lambda: super(Recording, self).reduce_scatter(out, flat)
        )

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Ticket:
        """See ``Comm``."""
        return self._call(
            "all_reduce", tensor, lambda: super(Recording, self).all_reduce(tensor, op)
        )

    def waited(self, call: int) -> None:
        """A collective is waited for."""
        self.note("wait", call)

    def note(self, kind: Literal["wait", "before_bucket", "after_bucket"], number: int) -> None:
        """Something other than a collective or a computation."""
        self._computed()
        self._moments.append(Moment(kind, call=number))

    def _call(
        self,
        kind: Literal["all_gather", "reduce_scatter", "all_reduce"],
        whole: torch.Tensor,
        copy: Callable[[], Ticket],
    ) -> Ticket:
        self._computed()
        dtype = str(whole.dtype).removeprefix("torch.")
        self._moments.append(Moment(kind, numel=whole.numel(), dtype=dtype))
        copy()
        self._calls += 1
        self._since_s = time.perf_counter()  # the copy is not a computation of the chunk
        return _Waited(self, self._calls - 1)

    def _computed(self) -> None:
        now_s = time.perf_counter()
        self._moments.append(Moment("compute", seconds=now_s - self._since_s))
        self._since_s = now_s


class _Waited(Done):
    def __init__(self, recording: Recording, call: int) -> None:
        self._recording, self._call = recording, call

    def wait(self) -> None:
        self._recording.waited(self._call)


def record_passes(config: RunConfig) -> list[list[Passes]]:
    """Return the passes of each chunk of each pipeline rank, in order.

    Run it in a process of its own, with ``launch.threads_per_rank`` threads and no other work on
    the machine. Weights are zero, which changes no time.
    """
    found = []
    for pp in range(config.parallel.pp):
        comm = Recording(0, config.parallel.tp)
        tp = TensorParallel(
            comm,
            pieces=config.parallel.tp_pieces,
            keeps_whole=config.parallel.tp_keep == "whole",
        )
        chunks, _ = build_model(config, Coordinates(tp=0, pp=pp, dp=0), tp, torch.device("cpu"))
        found.append([_passes_of(chunk, comm, config) for chunk in chunks])
    return found


def _passes_of(chunk: Chunk, comm: Recording, config: RunConfig) -> Passes:
    is_split = config.parallel.schedule.startswith("zb")
    runs: list[Passes] = [
        _once(chunk, comm, config.train.micro_batch_size, is_split=is_split)
        for _ in range(WARMUP + REPEATS)
    ]
    return {name: _median([run[name] for run in runs[WARMUP:]]) for name in runs[0]}


def _once(chunk: Chunk, comm: Recording, size: int, *, is_split: bool) -> Passes:
    """One micro-batch of zeros there and back, as ``model.rehearsal`` makes it."""
    tokens = torch.zeros((size, chunk.model.seq_len), dtype=torch.int64)
    x = torch.zeros(chunk.activation_shape(size), dtype=chunk.precision.param_dtype)
    borders = ((0, chunk.model.seq_len),) * size if chunk.model.document_end is not None else None
    made = []

    def forward() -> None:
        given = tokens if chunk.is_first else x
        made.append(
            chunk.forward(
                given,
                tokens,
                torch.ones_like(tokens),
                borders=borders,
                before_bucket=partial(comm.note, "before_bucket"),
            )
        )

    def backward() -> None:
        chunk.backward(
            made[0], grad, weight=not is_split, after_bucket=partial(comm.note, "after_bucket")
        )

    grad = None if chunk.is_last else x
    passes = {"forward": comm.record(forward)}
    name = "backward_input" if is_split else "backward"
    passes[name] = comm.record(backward)
    if is_split:
        passes["backward_weight"] = comm.record(lambda: chunk.backward_weight(made[0]))
    return passes


def _median(runs: list[Pass]) -> Pass:
    """Return the moments of one run with the median times of all runs."""
    return [
        Moment(
            same[0].kind,
            statistics.median(moment.seconds for moment in same),
            same[0].numel,
            same[0].dtype,
            same[0].call,
        )
        for same in zip(*runs, strict=True)
    ]
