"""Tensor-parallel ranks that share a head of keys and values compute what one process computes.

``assemble`` compares the bits of the copies.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.testkit.trainer.layouts import BARS, small_run
from headway.testkit.trainer.pool import WorkerPool
from headway.testkit.trainer.training import Trained, distance, train_layout

Reference = Callable[[str, str, str], Trained]
SHORT = 3
CASES: list[tuple[str, dict[str, Any]]] = [
    ("multi-query", {"tp": 2, "pp": 2, "schedule": "zb-h1"}),
    ("multi-query", {"tp": 4, "tp_pieces": 2}),
    ("llama", {"tp": 4, "dp": 2}),
    ("mistral", {"tp": 4, "pp": 2, "schedule": "interleaved", "vp": 2}),
]


def _world(parallel: dict[str, Any]) -> int:
    size = 1
    for axis in ("tp", "pp", "dp"):
        size *= parallel.get(axis, 1)
    return size


def _compare(found: Trained, expected: Trained) -> None:
    for kind in ("grads", "params"):
        worst, name = distance(getattr(found, kind), getattr(expected, kind))
        assert worst < BARS["fp64"], f"{kind} of {name} differ by {worst:.1e} of their norm"
    for curve in ("losses", "norms", "evals"):
        ours, theirs = getattr(found, curve), getattr(expected, curve)
        assert max(abs(ours[step] - theirs[step]) for step in theirs) < BARS["fp64"], curve


@pytest.mark.parametrize("name", ["adamw", "lamb"])
@pytest.mark.parametrize(("family", "parallel"), CASES)
def test_shared_heads_equal_the_single_process_in_fp64(
    pool: WorkerPool, tmp_path: Path, family: str, parallel: dict[str, Any], name: str
) -> None:
    """LAMB's norms count a shared head once; without that its steps have other lengths."""
    trained = []
    for layout in ({}, parallel):
        config = small_run("fp64", parallel=layout, world_size=_world(layout), family=family)
        config["optim"]["name"] = name
        trained.append(
            train_layout(pool, config, _world(layout), tmp_path / str(len(trained)), SHORT)
        )
    _compare(trained[1], trained[0])
