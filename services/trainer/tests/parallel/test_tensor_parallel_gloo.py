"""Tensor parallelism over real processes and gloo, against one rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.testkit.trainer.models import Part, random_batch, tiny_model
from headway.testkit.trainer.pool import WorkerPool


@pytest.mark.parametrize(("block", "tp"), [("serial", 2), ("parallel", 4)])
def test_processes_agree_with_one_rank(
    pool: WorkerPool, tmp_path: Path, block: str, tp: int
) -> None:
    model = tiny_model(block)
    alone = Part(model)
    wanted_loss = alone.run(random_batch(model))
    generation = pool.next_generation()
    args = [
        {"tp": tp, "rank": rank, "generation": generation, "folder": str(tmp_path), "block": block}
        for rank in range(tp)
    ]
    reports = pool.run("headway.testkit.trainer.jobs:tp_pass", args)
    assert [report["loss"] for report in reports] == pytest.approx([wanted_loss] * tp, rel=1e-12)
    norm_square = sum(report["norm_square"] for report in reports)
    assert norm_square == pytest.approx(alone.flat.norm_square().item(), rel=1e-10)
    replicated = {spec.name for spec in alone.chunk.buckets[0].params if spec.is_replicated}
    for name, grad in alone.grads().items():
        pieces = [report["squares"][name] for report in reports]
        got = pieces[0] if name in replicated else sum(pieces)
        assert got == pytest.approx(grad.square().sum().item(), rel=1e-10), name
