"""``torch.distributed.pipelining``: GPipe, 1F1B, Interleaved1F1B and ZBV over compiled stages.

Options: ``schedule``, ``micro``, ``precision`` (``autocast`` or ``fp32``), ``compile``,
``weights``. The gradient's norm is taken over all stages before it is clipped, as in torchtitan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from benchmarks.train.ours import LEARNING_RATE
from benchmarks.train.peer_model import GPT, load_weights, loss_of, optimizer
from benchmarks.train.peer_plain import CLIP
from benchmarks.train.shapes import Shape, rows
from benchmarks.train.turns import Turns
from benchmarks.train.worker import Job, connect

SCHEDULES: dict[str, tuple[Any, int]] = {
    "gpipe": (schedules.ScheduleGPipe, 1),
    "1f1b": (schedules.Schedule1F1B, 1),
    "interleaved": (schedules.ScheduleInterleaved1F1B, 2),
    "zbv": (schedules.ScheduleZBVZeroBubble, 2),
}
"""Name -> class and chunks per rank."""


def chunk_ids(schedule: str, rank: int, world: int) -> list[int]:
    """The stages that a rank holds."""
    if SCHEDULES[schedule][1] == 1:
        return [rank]
    return [rank, 2 * world - 1 - rank if schedule == "zbv" else rank + world]


def run(job: Job, turns: Turns) -> None:
    """Train until there are no more turns."""
    turns.play(lambda: Rank(job).step)


class Rank:
    """One process's stages, their schedule and optimizer."""

    def __init__(self, job: Job) -> None:
        connect(job)
        self.shape, options = job.model, job.options
        shape, name, micro = self.shape, options["schedule"], int(options["micro"])
        make, vp = SCHEDULES[name]
        self.ids, self.count = chunk_ids(name, job.rank, job.world), job.world * vp
        self.is_narrow = options["precision"] == "autocast"
        weights = torch.load(job.weights)
        self.models = nn.ModuleList(self._stage(stage, weights) for stage in self.ids)
        if options.get("compile"):
            for model in self.models:
                model.compile()
        stages = [
            PipelineStage(
                model, stage, self.count, torch.device("cpu"), **self._examples(stage, micro)
            )
            for model, stage in zip(self.models, self.ids, strict=True)
        ]
        self.schedule = make(stages if vp > 1 else stages[0], shape.batch // micro, loss_fn=loss_of)
        self.optimizer = optimizer(self.models, LEARNING_RATE)

    def step(self, step: int) -> float | None:
        """One optimizer step; the loss, on the process that has it."""
        self.optimizer.zero_grad(set_to_none=True)
        values = torch.from_numpy(rows(self.shape, step * self.shape.batch, self.shape.batch))
        losses: list[torch.Tensor] = []
        is_last = self.count - 1 in self.ids
        tokens = (values[:, :-1].long(),) if 0 in self.ids else ()
        target = {"target": values[:, 1:].long(), "losses": losses} if is_last else {}
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_narrow):
            self.schedule.step(*tokens, **target)
        self._clip()
        self.optimizer.step()
        return float(torch.stack(losses).mean()) if losses else None

    def _stage(self, stage: int, weights: dict[str, torch.Tensor]) -> GPT:
        shape, depth = self.shape, self.shape.layers // self.count
        layers = range(stage * depth, (stage + 1) * depth)
        model = GPT(shape, layers, first=stage == 0, last=stage == self.count - 1)
        load_weights(model, weights, shape.hidden // shape.heads)
        return model

    def _examples(self, stage: int, micro: int) -> dict[str, Any]:
        """Inputs and outputs of a stage, so that no step is spent on finding their shapes."""
        shape: Shape = self.shape
        inner = torch.empty(micro, shape.seq, shape.hidden, device="meta", requires_grad=True)
        first = torch.zeros(micro, shape.seq, dtype=torch.long, device="meta")
        dtype = torch.bfloat16 if self.is_narrow else torch.float32
        size = (micro, shape.seq, shape.vocab)
        logits = torch.empty(size, dtype=dtype, device="meta", requires_grad=True)
        return {
            "input_args": (first if stage == 0 else inner,),
            "output_args": logits if stage == self.count - 1 else inner,
        }

    def _clip(self) -> None:
        grads = [p.grad for p in self.models.parameters() if p.grad is not None]
        square = nn.utils.get_total_norm(grads) ** 2
        torch.distributed.all_reduce(square)
        nn.utils.clip_grads_with_norm_(self.models.parameters(), CLIP, square.sqrt())
