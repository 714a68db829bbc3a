"""Ranks of ``nccl_model`` whose hosts wait for an idle device in the middle of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from headway.common.plan.schedule.actions import Kind, Schedule
from headway.trainer.session.rehearsal import EchoPipe, enough

from services.trainer.tests.pipeline.nccl_model import FakeChunk, Trace, by_pair, lowered, pass_of

LATE = ("forward", "backward", "weight", "optimizer", "lock", "grow", "free")
"""What keeps a host: the first launch of a forward, a backward, a weight's backward or the
optimizer; page-locking a step's batches; an allocation beyond all earlier ones, for what a forward
leaves to its backward; and the first free of that."""


@dataclass
class Host:
    """What one rank has not loaded or locked yet, and the most memory it has had."""

    trace: Trace
    late: set[str]
    most: int = 0
    now: int = 0

    def do(self, kind: str) -> None:
        """For the first time it waits until all that was issued is done."""
        if kind in self.late:
            self.late.discard(kind)
            self.trace.gates.append(self.trace.messages)

    def get(self) -> None:
        """Memory for one more activation."""
        self.now += 1
        if self.now > self.most and "grow" in self.late:
            self.trace.gates.append(self.trace.messages)
        self.most = max(self.most, self.now)

    def free(self) -> None:
        """The memory of one."""
        self.now -= 1
        self.do("free")


class Loading(FakeChunk):
    """A chunk that loads kernels and takes memory."""

    def __init__(self, stage: int, stages: int, host: Host) -> None:
        super().__init__(stage, stages)
        self._host = host

    def forward(self, *args: Any, **kind: Any) -> Any:
        self._host.do("forward")
        self._host.get()
        return super().forward(*args, **kind)

    def backward(self, *args: Any, weight: bool = True, **kind: Any) -> torch.Tensor | None:
        self._host.do("backward")
        if weight:
            self._host.free()
        return super().backward(*args, **kind)

    def backward_weight(self, _: Any) -> None:
        self._host.do("weight")
        self._host.free()


def step_of(
    name: str, pp: int, vp: int, late: set[str], *, overlap: bool, rehearsed: bool
) -> list[Trace]:
    """Return every rank's trace of a training step.

    ``rehearsed``: after a pass over messages that are there, of as many micro-batches as a real
    rehearsal has.
    """
    schedule = lowered(name, pp, vp)
    short = lowered(name, pp, vp, groups=enough(name, pp, schedule.num_micro_batches) // pp)
    traces = []
    for rank in range(pp):
        trace = Trace()
        host = Host(trace, set(late))
        if rehearsed:
            _run(short, rank, host, EchoPipe(rank, pp, is_v=schedule.is_v), overlap=overlap)
        _run(schedule, rank, host, by_pair(trace, rank, schedule), overlap=overlap)
        traces.append(trace)
    return traces


def _run(schedule: Schedule, rank: int, host: Host, pipe: Any, *, overlap: bool) -> None:
    chunks = [
        Loading(stage, schedule.num_stages, host)
        for stage in schedule.stage_map.stages_of(rank, schedule.vp)
    ]
    handlers = {
        Kind.DATA: lambda *_: host.do("lock"),
        Kind.OPTIMIZER: lambda *_: host.do("optimizer"),
    }
    pass_of(schedule, rank, chunks, pipe, host.trace, overlap=overlap, handlers=handlers).run()
