"""Stages that sleep instead of computing, for Headway's ``Pipeline`` and for torch's schedules.

What is left of a step's time above the schedule's own length is what the executor costs: messages
that are not hidden, and waiting at the wrong place.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from headway.common.config import load
from headway.common.plan.schedule.actions import COMPUTE, RECEIVES, SENDS, Action, Kind
from headway.common.plan.schedule.generate import generate
from headway.common.plan.schedule.lower import lower
from headway.testkit.trainer.pool import WorkerContext
from headway.testkit.trainer.training import build_groups
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import MicroBatch
from headway.trainer.device.recorder import NoRecorder
from headway.trainer.pipeline.executor import BucketHandler, Handler, Pipeline
from torch import nn
from torch.distributed.pipelining import PipelineStage

from benchmarks.train.peer_pipe import SCHEDULES, chunk_ids
from benchmarks.train.turns import Step, Turns
from benchmarks.train.worker import Job, connect

OF_STEP = tuple(kind for kind in Kind if kind not in COMPUTE | SENDS | RECEIVES)


def run(job: Job, turns: Turns) -> None:
    """Options: ``side`` (``headway`` or ``torch``), ``schedule``, ``vp``, ``micro_batches``,
    ``forward_s`` (of one rank and micro-batch, over its chunks; backward takes twice as long) and
    ``message_bytes``."""
    turns.play(lambda: {"headway": our_step, "torch": torch_step}[job.options["side"]](job))


class SleepingChunk:
    """A chunk whose forward and backward sleep; its activation has ``elements`` elements."""

    def __init__(self, forward_s: float, elements: int, *, first: bool, last: bool) -> None:
        self.is_first, self.is_last, self.device = first, last, torch.device("cpu")
        self.precision = SimpleNamespace(param_dtype=torch.float32)
        self._forward_s, self._elements = forward_s, elements

    def activation_shape(self, micro_batch_size: int) -> torch.Size:
        """Shape of a message."""
        del micro_batch_size
        return torch.Size((self._elements,))

    def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> SleepingForward:
        """Sleep; a new tensor of the message's size, or a loss."""
        time.sleep(self._forward_s)
        return SleepingForward(torch.zeros(()) if self.is_last else x * 1)

    def backward(self, forward: Any, grad: torch.Tensor | None, **_: Any) -> torch.Tensor | None:
        """Sleep twice as long."""
        del forward
        time.sleep(2 * self._forward_s)
        if self.is_first:
            return None
        return torch.zeros(self._elements) if grad is None else grad * 1


class SleepingForward:
    """What the pipeline keeps of a forward."""

    def __init__(self, output: torch.Tensor) -> None:
        self._output: torch.Tensor | None = output

    def take_output(self) -> torch.Tensor:
        """The output, once."""
        output, self._output = self._output, None
        assert output is not None
        return output


def our_step(job: Job) -> Step:
    """One pass of the real ``Pipeline`` over real gloo lanes."""
    options, pp = job.options, job.world
    vp, count = int(options["vp"]), int(options["micro_batches"])
    settings = (
        f"model.layers={pp * vp}", f"parallel.pp={pp}", f"parallel.vp={vp}",
        f"parallel.schedule={options['schedule']}", f"launch.ranks_per_node={pp}",
        f"train.global_batch_size={count}",
    )  # fmt: skip
    config = load(RunConfig, overrides=settings)
    computed = generate(options["schedule"], pp=pp, vp=vp, num_micro_batches=count)
    actions = lower(computed).ranks[job.rank]
    elements, forward_s = int(options["message_bytes"]) // 4, float(options["forward_s"]) / vp
    last = pp * vp - 1
    chunks = [
        SleepingChunk(forward_s, elements, first=stage == 0, last=stage == last)
        for stage in range(job.rank, pp * vp, pp)
    ]
    groups = build_groups(WorkerContext(), config, job.rank, 0, job.folder)
    tokens = MicroBatch(tokens=torch.zeros(elements))

    def data(pipeline: Pipeline, _: Action) -> None:
        pipeline.batches = [tokens] * count

    handlers: dict[Kind, Handler] = {kind: lambda *_: None for kind in OF_STEP}
    handlers[Kind.DATA] = data

    return lambda _: sleeping_pass(actions, chunks, groups, handlers)


def sleeping_pass(
    actions: Sequence[Action],
    chunks: Sequence[SleepingChunk],
    groups: Groups,
    handlers: Mapping[Kind, Handler],
    *,
    before_bucket: BucketHandler = lambda *_: None,
    after_bucket: BucketHandler | None = None,
) -> float:
    """One pass over the list, to whose end all ranks wait; there is no loss."""
    Pipeline(
        actions,
        chunks,  # type: ignore[arg-type]
        groups.pipe,
        NoRecorder(),
        step=0,
        micro_batch_size=1,
        loss_scale=1.0,
        train=True,
        overlap=True,
        handlers=handlers,
        check=groups.channels.check,
        before_bucket=before_bucket,
        after_bucket=after_bucket,
    ).run()
    groups.every_rank.all_reduce(torch.zeros(1)).wait()
    return 0.0


class _Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds, ctx.wants_input = seconds, x.requires_grad
        time.sleep(seconds)
        del weight
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        time.sleep(2 * ctx.seconds)
        return grad * 1 if ctx.wants_input else None, torch.zeros(1), None


class _Stage(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Nap.apply(x, self.weight, self.seconds)
        return y


def torch_step(job: Job) -> Step:
    """One step of torch's schedule; its input wants no gradient, as tokens would not."""
    connect(job)
    options, pp = job.options, job.world
    name, count = str(options["schedule"]), int(options["micro_batches"])
    make, vp = SCHEDULES[name]
    ids, elements = chunk_ids(name, job.rank, pp), int(options["message_bytes"]) // 4
    forward_s = float(options["forward_s"]) / vp
    example = torch.empty(1, elements, device="meta", requires_grad=True)
    plain = torch.empty(1, elements, device="meta")
    stages = [
        PipelineStage(
            _Stage(forward_s),
            stage,
            pp * vp,
            torch.device("cpu"),
            input_args=(plain if stage == 0 else example,),
            output_args=example,
        )
        for stage in ids
    ]
    # the loss reads one element, so that it costs the last stage nothing of a message's size
    schedule = make(stages if vp > 1 else stages[0], count, loss_fn=lambda y, _: y[0, 0] * 1.0)
    tokens, labels = torch.zeros(count, elements), torch.zeros(count, 1)

    def step(_: int) -> float:
        schedule.step(
            *([tokens] if 0 in ids else []),
            **({"target": labels} if pp * vp - 1 in ids else {}),
        )
        torch.distributed.barrier()
        return 0.0

    return step
