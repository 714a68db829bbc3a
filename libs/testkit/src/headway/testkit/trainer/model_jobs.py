"""Jobs for the worker pool: one pass of a tiny model over real gloo groups."""

from __future__ import annotations

from typing import Any

from headway.common.plan.grid import Grid
from headway.testkit.trainer.jobs import join
from headway.testkit.trainer.models import Part, random_batch, tiny_model
from headway.testkit.trainer.pool import WorkerContext


def tp_pass(
    context: WorkerContext, *, tp: int, rank: int, generation: int, folder: str, block: str
) -> Any:
    """Loss, squared norm and, by name, the squared gradient norms of this rank's pieces."""
    groups = join(context, Grid(tp=tp, pp=1, dp=1), rank, generation, folder)
    try:
        model = tiny_model(block)
        part = Part(model, comm=groups["tp"])
        loss = part.run(random_batch(model))
        part.chunk.finish_grads()
        squares = {name: grad.square().sum().item() for name, grad in part.grads().items()}
        return {"loss": loss, "norm_square": part.flat.norm_square(rank).item(), "squares": squares}
    finally:
        context.fence.leave(broken=False)
        groups.release()
