"""Tensor and sequence parallelism by DTensor, with a loss over the cut vocabulary.

The plan is torchtitan's: norms on pieces of the sequence, linears cut by columns, then rows.
Options as in ``peer_plain``.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from benchmarks.train.ours import LEARNING_RATE
from benchmarks.train.peer_model import GPT, load_weights, optimizer
from benchmarks.train.peer_plain import CLIP
from benchmarks.train.shapes import rows
from benchmarks.train.turns import Turns
from benchmarks.train.worker import Job, connect


def run(job: Job, turns: Turns) -> None:
    """Train until there are no more turns."""
    turns.ready()
    turns.begin()
    connect(job)
    shape, options = job.model, job.options
    model = GPT(shape)
    load_weights(model, torch.load(job.weights), shape.hidden // shape.heads)
    if options["precision"] == "pure":
        model.bfloat16()
    cut(model, torch.distributed.init_device_mesh("cpu", (job.world,)))
    if options.get("compile"):
        model.compile()
    optim = optimizer(model, LEARNING_RATE)
    step = 0
    while True:
        turns.done(_step(job, model, optim, step))
        step += 1


def cut(model: GPT, mesh: Any) -> None:
    """Cut ``model`` over ``mesh``."""
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    )
    for block in model.blocks.values():
        parallelize_module(
            block,
            mesh,
            {
                "norm1": SequenceParallel(),
                "norm2": SequenceParallel(),
                "qkv": ColwiseParallel(input_layouts=Shard(1)),
                "out": RowwiseParallel(output_layouts=Shard(1)),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            },
        )


def _step(job: Job, model: GPT, optim: torch.optim.Optimizer, step: int) -> float:
    shape, micro = job.model, int(job.options["micro"])
    is_narrow = job.options["precision"] == "autocast"
    optim.zero_grad(set_to_none=True)
    total, count = torch.zeros(()), shape.batch // micro
    with loss_parallel() if job.world > 1 else contextlib.nullcontext():
        for index in range(count):
            first = step * shape.batch + index * micro
            values = torch.from_numpy(rows(shape, first, micro)).long()
            with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
                logits = model(values[:, :-1].contiguous())
            # not ``loss_of``: joining batch and sequence of a DTensor would gather it
            loss = nn.functional.cross_entropy(
                logits.float().flatten(0, 1), values[:, 1:].flatten()
            )
            loss = loss / count
            loss.backward()
            total += _local(loss.detach())
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optim.step()
    return float(total)


def _local(value: Any) -> torch.Tensor:
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole
