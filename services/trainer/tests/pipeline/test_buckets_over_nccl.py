"""Gathers and reductions of buckets beside a pipeline's messages, over the model of NCCL's streams.

Two replicas; a collective of a bucket is a message between their ranks of one stage, in a
communicator of its own. It starts when both have come to it, as a collective does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from headway.common.plan.schedule.actions import Action, Kind, Schedule

from services.trainer.tests.pipeline.nccl_devices import carry_out
from services.trainer.tests.pipeline.nccl_model import (
    SHAPES,
    Factory,
    FakeChunk,
    Recorded,
    Ticket,
    Trace,
    lowered,
    pass_of,
)

BUCKETS = 3
REPLICAS = 2
STEPS = 2
TRAINING = [shape for shape in SHAPES if shape[0] != "forward-only" and shape[1] <= 4]


class BucketChunk(FakeChunk):
    """Calls what a chunk of three buckets calls."""

    def forward(self, *args: Any, before_bucket: Callable[[int], None], **kind: Any) -> Any:
        for bucket in range(BUCKETS):
            before_bucket(bucket)
        return super().forward(*args, **kind)

    def backward(
        self, forward: Any, *args: Any, weight: bool = True, after_bucket: Any = None, **kind: Any
    ) -> torch.Tensor | None:
        forward.tape = after_bucket
        if weight:
            self.backward_weight(forward)
        return super().backward(forward, *args, **kind)

    def backward_weight(self, forward: Any) -> None:
        for bucket in range(BUCKETS - 1, 0, -1):
            if forward.tape is not None:
                forward.tape(bucket)


class Collectives:
    """The gathers and reductions of one rank."""

    def __init__(self, trace: Trace, replica: int, stage: int, pp: int) -> None:
        members = tuple(one * pp + stage for one in range(REPLICAS))
        self._comm, self._is_first = Recorded(trace, f"dp{stage}", members), replica == 0
        self._gathers: dict[tuple[int, int], Ticket] = {}
        self._reduces: list[Ticket] = []
        self.order: list[tuple[str, int, int]] = []

    def gather(self, chunk: int) -> None:
        """Of those buckets whose gathers are not under way since the last optimizer."""
        for bucket in range(BUCKETS):
            if (chunk, bucket) not in self._gathers:
                self._gathers[chunk, bucket] = self._issue("gather", chunk, bucket)

    def ready(self, chunk: int, bucket: int) -> None:
        if ticket := self._gathers.pop((chunk, bucket), None):
            ticket.wait()

    def reduce(self, chunk: int, bucket: int) -> None:
        self._reduces.append(self._issue("reduce", chunk, bucket))

    def finish(self) -> None:
        for ticket in self._reduces:
            ticket.wait()
        self._reduces.clear()

    def settle(self) -> None:
        for ticket in self._gathers.values():
            ticket.wait()

    def _issue(self, what: str, chunk: int, bucket: int) -> Ticket:
        tag = len(self.order)
        self.order.append((what, chunk, bucket))
        way = self._comm.send if self._is_first else self._comm.recv
        return way(torch.zeros(1), 1 - (not self._is_first), tag)


def run(schedule: Schedule, replica: int, stage: int, *, ahead: bool) -> tuple[Trace, Collectives]:
    """One rank's steps; with ``ahead`` each one's optimizer gathers for the next one."""
    pp, trace = schedule.pp, Trace()
    wraps = schedule.vp > 1 and not schedule.is_v
    pipe = Factory(trace, wraps=wraps, is_v=schedule.is_v).pipe(
        "pp", range(replica * pp, (replica + 1) * pp), replica * pp + stage
    )[1]
    collectives = Collectives(trace, replica, stage, pp)
    stages = schedule.stage_map.stages_of(stage, schedule.vp)
    chunks = [BucketChunk(one, schedule.num_stages) for one in stages]

    def last_bucket(_: Any, action: Action) -> None:
        collectives.reduce(action.chunk, 0)

    def optimizer(*_: Any) -> None:
        for chunk in range(schedule.vp if ahead else 0):
            collectives.gather(chunk)

    for _ in range(STEPS):
        pass_of(
            schedule,
            stage,
            chunks,
            pipe,
            trace,
            overlap=True,
            handlers={
                Kind.ALL_GATHER: lambda _, action: collectives.gather(action.chunk),
                Kind.REDUCE_SCATTER: last_bucket,
                Kind.NORM: lambda *_: collectives.finish(),
                Kind.OPTIMIZER: optimizer,
            },
            before_bucket=collectives.ready,
            after_bucket=collectives.reduce,
        ).run()
    collectives.settle()
    return trace, collectives


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(("name", "pp", "vp"), TRAINING)
def test_steps_end_and_each_bucket_is_gathered_and_reduced_once_in_each_in_one_order(
    name: str, pp: int, vp: int, ahead: bool
) -> None:
    schedule, ranks = lowered(name, pp, vp), [(r, s) for r in range(REPLICAS) for s in range(pp)]
    found = [run(schedule, replica, stage, ahead=ahead) for replica, stage in ranks]
    assert carry_out([trace for trace, _ in found]) == 0
    for stage in range(pp):
        mine, other = (found[replica * pp + stage][1].order for replica in range(REPLICAS))
        assert mine == other
        every = {(chunk, bucket) for chunk in range(vp) for bucket in range(BUCKETS)}
        for what, times in (("gather", STEPS + ahead), ("reduce", STEPS)):
            done = Counter((chunk, bucket) for kind, chunk, bucket in mine if kind == what)
            assert done == Counter(dict.fromkeys(every, times))
