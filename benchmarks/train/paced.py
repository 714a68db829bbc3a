"""Ranks that sleep instead of computing, and collectives that take a set time.

What is real: the schedule, ``Pipeline``, ``DataParallel``, ``TensorParallel`` and its linear
layers, messages between stages, and that a collective begins when its last member has entered. So
what a step takes longer than one whose collectives take no time is what its order did not hide,
on a machine with fewer cores than ranks too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch
from headway.common.config import load
from headway.common.plan.schedule.actions import Action, Kind
from headway.common.plan.schedule.generate import generate
from headway.common.plan.schedule.lower import lower
from headway.testkit.trainer.pool import WorkerContext
from headway.testkit.trainer.training import build_groups
from headway.trainer.comm.interface import Comm, Op
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import MicroBatch
from headway.trainer.device.recorder import NoRecorder
from headway.trainer.model import linear, tape
from headway.trainer.model.linear import ColumnLinear, RowLinear
from headway.trainer.model.tape import Tape
from headway.trainer.parallel.data import DataParallel
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.pipeline.executor import Handler, Pipeline

from benchmarks.train.sleepers import OF_STEP, SleepingChunk, SleepingForward, sleeping_pass
from benchmarks.train.turns import Step, Turns
from benchmarks.train.worker import Job

BUCKETS = 4
ELEMENTS = 1 << 14
"""Of a message between stages: 64 KiB."""
SEQ, WIDTH, LAYERS = 256, 64, 2
GROWTH = (3, 1, 4, 4)
"""Widths of a layer's four products, in widths of the model: what they make, or what they take."""


def run(job: Job, turns: Turns) -> None:
    """Options: ``what`` (``buckets`` or ``pieces``), ``forward_s`` of a stage or a layer,
    ``gather_s`` and ``reduce_s`` of a whole collective, ``overlap`` or the number of ``pieces``."""
    turns.play(lambda: {"buckets": bucket_step, "pieces": piece_step}[job.options["what"]](job))


class PacedComm:
    """``comm``, whose collectives take a set time for each byte, one after the other."""

    def __init__(self, comm: Comm, gather_s: float, reduce_s: float) -> None:
        """Seconds for each byte of the whole tensor."""
        self._comm, self.rank, self.size = comm, comm.rank, comm.size
        self._gather_s, self._reduce_s = gather_s, reduce_s
        self._lane = ThreadPoolExecutor(1)

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor) -> _Played:
        """Leaves ``out`` as it is."""
        del shard
        return self._play(self._gather_s * out.nbytes)

    def reduce_scatter(self, out: torch.Tensor, flat: torch.Tensor) -> _Played:
        """Leaves ``out`` as it is."""
        del out
        return self._play(self._reduce_s * flat.nbytes)

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> _Played:
        """Not part of what is measured."""
        raise NotImplementedError(f"all_reduce of {tensor.nbytes} bytes, {op}")

    def _play(self, seconds: float) -> _Played:
        return _Played(self._lane.submit(self._meet_and_sleep, seconds))

    def _meet_and_sleep(self, seconds: float) -> None:
        self._comm.all_reduce(torch.zeros(1)).wait()
        time.sleep(seconds)


class _Played:
    collective = 0

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether its time is over."""
        return self._future.done()

    def wait(self) -> None:
        """Until its time is over."""
        self._future.result()


class Sleep:
    """Sleeps so long on average: what a sleep takes too long is taken off the next one."""

    def __init__(self) -> None:
        self._owed_s = 0.0

    def __call__(self, seconds: float) -> None:
        """Sleep ``seconds``."""
        self._owed_s += seconds
        if self._owed_s > 0.0:
            began_s = time.perf_counter()
            time.sleep(self._owed_s)
            self._owed_s -= time.perf_counter() - began_s


class BucketChunk(SleepingChunk):
    """A ``SleepingChunk`` whose passes go over ``BUCKETS`` buckets of equal length."""

    def __init__(self, forward_s: float, *, first: bool, last: bool) -> None:
        super().__init__(forward_s, ELEMENTS, first=first, last=last)
        self._sleep = Sleep()

    def forward(self, x: torch.Tensor, *_: Any, **hooks: Any) -> SleepingForward:
        """Sleep bucket by bucket."""
        for bucket in range(BUCKETS):
            hooks["before_bucket"](bucket)
            self._sleep(self._forward_s / BUCKETS)
        return SleepingForward(torch.zeros(()) if self.is_last else x * 1)

    def backward(
        self, forward: Any, grad: torch.Tensor | None, **hooks: Any
    ) -> torch.Tensor | None:
        """Sleep twice as long, the last bucket first."""
        del forward
        for bucket in reversed(range(BUCKETS)):
            self._sleep(2 * self._forward_s / BUCKETS)
            if bucket and hooks["after_bucket"] is not None:
                hooks["after_bucket"](bucket)
        if self.is_first:
            return None
        return torch.zeros(ELEMENTS) if grad is None else grad * 1


def bucket_step(job: Job) -> Step:
    """1F1B with two stages and two replicas, whose buckets are gathered and reduced."""
    options, count, overlap = job.options, int(job.options["micro_batches"]), job.options["overlap"]
    settings = (
        "model.layers=8", "parallel.pp=2", "parallel.dp=2", f"parallel.buckets={BUCKETS}",
        "launch.ranks_per_node=4", f"train.global_batch_size={2 * count}",
    )  # fmt: skip
    config = load(RunConfig, overrides=settings)
    place = config.parallel.grid.coordinates(job.rank)
    actions = lower(generate("1f1b", pp=2, num_micro_batches=count)).ranks[place.pp]
    chunk = BucketChunk(options["forward_s"], first=place.pp == 0, last=place.pp == 1)
    groups = build_groups(WorkerContext(), config, job.rank, 0, job.folder)
    flats = [_flat(place.dp) for _ in range(BUCKETS)]
    whole = BUCKETS * flats[0].params.nbytes
    data = DataParallel(
        flats,  # type: ignore[arg-type]
        [(0, bucket) for bucket in range(BUCKETS)],
        PacedComm(groups["dp"], options["gather_s"] / whole, options["reduce_s"] / whole),
        NoRecorder(),
        overlap_gather=overlap,
        overlap_reduce=overlap,
    )
    tokens = MicroBatch(tokens=torch.zeros(ELEMENTS))

    def give_data(pipeline: Pipeline, _: Action) -> None:
        pipeline.batches = [tokens] * count

    def gather(*_: object) -> None:
        for bucket in range(BUCKETS):
            data.gather(bucket, 0)

    handlers: dict[Kind, Handler] = {kind: lambda *_: None for kind in OF_STEP}
    handlers |= {
        Kind.DATA: give_data,
        Kind.ALL_GATHER: gather,
        Kind.REDUCE_SCATTER: lambda *_: data.reduce(0, 0),
        Kind.NORM: lambda *_: data.finish(0),
    }

    return lambda _: sleeping_pass(
        actions,
        [chunk],
        groups,
        handlers,
        before_bucket=lambda _, bucket: data.ready(bucket, 0),
        after_bucket=lambda _, bucket: data.reduce(bucket, 0),
    )


def _flat(dp_rank: int) -> SimpleNamespace:
    """The memory of a bucket; only its size is read."""
    params, half = torch.zeros(256), slice(128 * dp_rank, 128 * (dp_rank + 1))
    return SimpleNamespace(
        params=params, grads=params, param_shard=params[half], grad_shard=params[half],
        start=half.start, stop=half.stop,
    )  # fmt: skip


def piece_step(job: Job) -> Step:
    """Forward and backward of two layers' linear maps over two ranks of tensor parallelism."""
    options = job.options
    settings = ("parallel.tp=2", "launch.ranks_per_node=2")
    config = load(RunConfig, overrides=settings)
    groups = build_groups(WorkerContext(), config, job.rank, 0, job.folder)
    whole = SEQ * WIDTH * torch.tensor([]).element_size()
    comm = PacedComm(groups["tp"], options["gather_s"] / whole, options["reduce_s"] / whole)
    tp = TensorParallel(comm, pieces=options["pieces"])  # type: ignore[arg-type]
    _sleep_in_products(options["forward_s"] / (SEQ * WIDTH * WIDTH * sum(GROWTH) / 2))
    layers = [_layer(tp) for _ in range(LAYERS)]
    piece = torch.zeros(SEQ // 2, 1, WIDTH)

    def step(_: int) -> float:
        tape = Tape()
        x = piece
        for layer in layers:
            for one in layer:
                x = one.forward(x, tape)
        for layer in reversed(layers):
            for one in reversed(layer):
                x = one.backward(x, tape)
        tape.flush()
        groups.every_rank.all_reduce(torch.zeros(1)).wait()
        return 0.0

    return step


def _layer(tp: TensorParallel) -> list[ColumnLinear | RowLinear]:
    def weight(rows: int, columns: int) -> Any:
        return SimpleNamespace(data=torch.zeros(rows, columns), grad=torch.zeros(()))

    qkv, out, up, down = (growth * WIDTH // 2 for growth in GROWTH)
    return [
        ColumnLinear(weight(qkv, WIDTH), tp),
        _Narrow(weight(WIDTH, out), tp),
        ColumnLinear(weight(up, WIDTH), tp),
        RowLinear(weight(WIDTH, down), tp),
    ]


class _Narrow(RowLinear):
    """The map behind attention, which takes a third of what is before it."""

    def forward(self, x: torch.Tensor, tape: Tape | None, recompute: Any = None) -> torch.Tensor:
        """Of the first third."""
        return super().forward(x[..., : x.shape[-1] // 3], tape, recompute)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """As wide as what attention took."""
        return super().backward(grad, tape).repeat(1, 1, 3)


def _sleep_in_products(seconds: float) -> None:
    """Replace the products of linear layers: ``seconds`` for each multiplication."""
    sleep = Sleep()

    def slept(x: torch.Tensor, width: int, out: torch.Tensor | None) -> torch.Tensor:
        sleep(seconds * x.numel() * width)
        return x.new_zeros((*x.shape[:-1], width)) if out is None else out

    def forward(
        x: torch.Tensor, weight: torch.Tensor, _: object = None, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        return slept(x, len(weight), out)

    def backward(
        grad: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        return slept(grad, weight.shape[1], out)

    def weight_grad(_: object, grad: torch.Tensor, x: torch.Tensor, __: float) -> None:
        sleep(seconds * grad.numel() * x.shape[-1])

    changes: list[tuple[Any, str, Callable[..., Any]]] = [
        (linear, "linear", forward),
        (linear, "input_grad", backward),
        (tape, "add_weight_grad", weight_grad),
    ]
    for module, name, made in changes:
        setattr(module, name, made)
