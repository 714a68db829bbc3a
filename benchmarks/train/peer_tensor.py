"""Tensor and sequence parallelism by DTensor, with a loss over the cut vocabulary.

The plan is torchtitan's: norms on pieces of the sequence, linears cut by columns, then rows.
Options as in ``peer_plain``.
"""

from __future__ import annotations

import contextlib
import functools
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
from benchmarks.train.peer_plain import CLIP, batches
from benchmarks.train.turns import Step, Turns
from benchmarks.train.worker import Job, connect


def run(job: Job, turns: Turns) -> None:
    """Train until there are no more turns."""
    turns.play(lambda: _build(job))


def _build(job: Job) -> Step:
    connect(job)
    shape, options = job.model, job.options
    model = GPT(shape)
    load_weights(model, torch.load(job.weights), shape.hidden // shape.heads)
    if options["precision"] == "pure":
        model.bfloat16()
    cut(model, torch.distributed.init_device_mesh("cpu", (job.world,)))
    if options.get("compile"):
        model.compile()
    return functools.partial(_step, job, model, optimizer(model, LEARNING_RATE))


def cut(model: GPT, mesh: Any) -> None:
    """Cut ``model`` over ``mesh``."""
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
        "blocks.*.norm1": SequenceParallel(),
        "blocks.*.norm2": SequenceParallel(),
        "blocks.*.qkv": ColwiseParallel(input_layouts=Shard(1)),
        "blocks.*.out": RowwiseParallel(output_layouts=Shard(1)),
        "blocks.*.up": ColwiseParallel(input_layouts=Shard(1)),
        "blocks.*.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(model, mesh, plan)


def _step(job: Job, model: GPT, optim: torch.optim.Optimizer, step: int) -> float:
    is_narrow = job.options["precision"] == "autocast"
    optim.zero_grad(set_to_none=True)
    total, parts = torch.zeros(()), batches(job, step)
    with loss_parallel() if job.world > 1 else contextlib.nullcontext():
        for tokens, labels in parts:
            with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
                logits = model(tokens)
            # not ``loss_of``: joining batch and sequence of a DTensor would gather it
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
            loss = loss / len(parts)
            loss.backward()
            total += _local(loss.detach())
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optim.step()
    return float(total)


def _local(value: Any) -> torch.Tensor:
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole
