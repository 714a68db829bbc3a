"""Tensor-parallel ranks that share a head of keys and values compute what one process computes.

``assemble`` compares the bits of the copies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.pool import WorkerPool
from headway.testkit.trainer.training import Trained, train_layout

from tests.golden.compare import compare, world_size

SHORT = 3
CASES: list[tuple[str, dict[str, Any]]] = [
    ("multi-query", {"tp": 2, "pp": 2, "schedule": "zb-h1"}),
    ("multi-query", {"tp": 4, "tp_pieces": 2}),
    ("llama", {"tp": 4, "dp": 2}),
    ("mistral", {"tp": 4, "pp": 2, "schedule": "interleaved", "vp": 2}),
]


@pytest.mark.parametrize("name", ["adamw", "lamb"])
@pytest.mark.parametrize(("family", "parallel"), CASES)
def test_shared_heads_equal_the_single_process_in_fp64(
    pool: WorkerPool, tmp_path: Path, family: str, parallel: dict[str, Any], name: str
) -> None:
    """LAMB's norms count a shared head once; without that its steps have other lengths."""
    trained: list[Trained] = []
    for layout in ({}, parallel):
        config = small_run("fp64", parallel=layout, world_size=world_size(layout), family=family)
        config["optim"]["name"] = name
        trained.append(
            train_layout(pool, config, world_size(layout), tmp_path / str(len(trained)), SHORT)
        )
    compare(trained[1], trained[0])
