"""Tuned plain torch: one process, DDP or FSDP2, compiled, with fused AdamW.

Options: ``micro`` sequences of a micro-batch, ``precision`` (``autocast``, ``pure``: bf16 weights
and moments, ``fp32``), ``compile``, ``how`` (``single``, ``ddp``, ``fsdp``), ``weights``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.train.ours import LEARNING_RATE
from benchmarks.train.peer_model import GPT, load_weights, loss_of, optimizer
from benchmarks.train.shapes import rows
from benchmarks.train.turns import Turns
from benchmarks.train.worker import Job, connect

CLIP = 1.0
Batches = list[tuple[torch.Tensor, torch.Tensor]]


def run(job: Job, turns: Turns) -> None:
    """Train until there are no more turns."""
    turns.play(lambda: Trainer(job).step)


def batches(job: Job, step: int, replicas: int = 1, replica: int = 0) -> Batches:
    """A replica's micro-batches; its j-th is the j * replicas + replica of all, as Headway's."""
    shape, micro = job.model, int(job.options["micro"])
    found = []
    for index in range(shape.batch // (micro * replicas)):
        first = step * shape.batch + (index * replicas + replica) * micro
        values = torch.from_numpy(rows(shape, first, micro)).long()
        found.append((values[:, :-1].contiguous(), values[:, 1:].contiguous()))
    return found


class Trainer:
    """Model, optimizer, and one step."""

    def __init__(self, job: Job) -> None:
        self.job, self.options = job, job.options
        if job.world > 1:
            connect(job)
        self.model = self._model(GPT(job.model))
        self.optimizer = optimizer(self.model, LEARNING_RATE)
        self._loss: Callable[..., torch.Tensor] = self._forward
        if self.options.get("compile") and self._compiles_whole:
            self._loss = torch.compile(self._forward)

    def step(self, step: int) -> float | None:
        """One optimizer step; the mean loss over all processes."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros(())
        parts = batches(self.job, step, self.job.world, self.job.rank)
        for index, (tokens, labels) in enumerate(parts):
            with self._synchronised(index == len(parts) - 1):
                loss = self._loss(tokens, labels) / len(parts)
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return self._mean(total)

    @property
    def _compiles_whole(self) -> bool:
        """Whether forward and loss are one graph; DDP and FSDP2 compile what they wrap."""
        return self.options.get("how", "single") == "single"

    def _model(self, model: GPT) -> nn.Module:
        """Weights, type, wrapper."""
        shape, options = self.job.model, self.options
        if "weights" in options:
            load_weights(model, torch.load(self.job.weights), shape.hidden // shape.heads)
        if options["precision"] == "pure":
            model.bfloat16()
        how = options.get("how", "single")
        if how == "ddp":
            if options.get("compile"):
                model.compile()
            return DistributedDataParallel(model, gradient_as_bucket_view=True)
        if how == "fsdp":
            return self._fsdp(model)
        return model

    def _fsdp(self, model: GPT) -> nn.Module:
        """Parameters stay gathered from the first forward to the last backward of a step."""
        mesh = torch.distributed.init_device_mesh("cpu", (self.job.world,))
        narrow = self.options["precision"] == "autocast"
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if narrow else None, reduce_dtype=torch.float32
        )
        how: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": False}
        if self.options.get("by_block", True):
            for block in model.blocks.values():
                if self.options.get("compile"):
                    block.compile()
                fully_shard(block, **how)
        elif self.options.get("compile"):
            model.compile()
        return fully_shard(model, **how)

    def _forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        is_auto = self.options["precision"] == "autocast" and not isinstance(self.model, FSDPModule)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_auto):
            logits = self.model(tokens)
        return loss_of(logits, labels)

    @contextlib.contextmanager
    def _synchronised(self, is_last: bool) -> Any:
        """Gradients are reduced only after the last micro-batch."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(is_last)
            self.model.set_reshard_after_backward(is_last)
            yield
        elif isinstance(self.model, DistributedDataParallel) and not is_last:
            with self.model.no_sync():
                yield
        else:
            yield

    def _mean(self, total: torch.Tensor) -> float:
        if self.job.world > 1:
            torch.distributed.all_reduce(total)
            total /= self.job.world
        return float(total)
