"""Layouts of two ranks on a device against one process on the CPU, in fp64.

On one GPU both ranks use it: see ``training.train``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.testkit.trainer.layouts import BARS, Layout, single
from headway.testkit.trainer.pool import WorkerPool, worker_pool
from headway.testkit.trainer.training import Trained, distance, train_layout

NUM_STEPS = 8
LAYOUTS = [
    Layout("tp2", "1f1b", "serial"),
    Layout("tp2", "1f1b", "parallel"),
    Layout("pp2", "1f1b", "serial"),
    Layout("pp2", "interleaved", "parallel"),
    Layout("pp2", "zb-h1", "serial"),
    Layout("dp2", "1f1b", "serial"),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with worker_pool(2) as workers:
        yield workers


@pytest.fixture(scope="module")
def wanted(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    folder = tmp_path_factory.mktemp("single")
    return {
        block: train_layout(pool, single(block, "fp64"), 1, folder / block, NUM_STEPS)
        for block in ("serial", "parallel")
    }


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_layout_equals_one_process(
    device: str, pool: WorkerPool, wanted: dict[str, Trained], tmp_path: Path, layout: Layout
) -> None:
    found = train_layout(
        pool, layout.config("fp64"), 2, tmp_path, NUM_STEPS, on_gpu=device == "cuda"
    )
    expected = wanted[layout.block]
    assert found.losses == pytest.approx(expected.losses, rel=BARS["fp64"])
    for what in ("grads", "params"):
        worst, name = distance(getattr(found, what), getattr(expected, what))
        assert worst < BARS["fp64"], (what, name)
