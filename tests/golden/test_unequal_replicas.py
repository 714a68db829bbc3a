"""Replicas with unequal numbers of micro-batches compute what one process computes.

Tokens have equal weight whichever replica computes them, and samples are taken in the same order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headway.common.config import from_dict
from headway.common.errors import ConfigError
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.pool import WorkerPool
from headway.testkit.trainer.training import Trained, train_layout
from headway.trainer.config import RunConfig

from tests.golden.compare import compare, world_size

SHORT = 3
CASES: list[tuple[int, dict[str, Any]]] = [
    (16, {"dp": 3}),  # 3, 3 and 2 micro-batches, in buckets
    (14, {"pp": 2, "dp": 2}),
    (14, {"pp": 2, "dp": 2, "schedule": "zb-h1"}),
    (16, {"pp": 2, "dp": 3, "schedule": "gpipe"}),
    (6, {"tp": 2, "dp": 2}),  # 2 and 1
]


def _config(batch_size: int, parallel: dict[str, Any]) -> dict[str, Any]:
    config = small_run("fp64", parallel=parallel, world_size=world_size(parallel))
    config["train"] |= {"global_batch_size": batch_size, "eval_every": 2, "eval_batches": 2}
    return config


@pytest.mark.parametrize(("batch_size", "parallel"), CASES, ids=str)
def test_unequal_replicas_equal_the_single_process_in_fp64(
    pool: WorkerPool, tmp_path: Path, batch_size: int, parallel: dict[str, Any]
) -> None:
    trained: list[Trained] = []
    for layout in ({}, parallel):
        config, folder = _config(batch_size, layout), tmp_path / str(len(trained))
        trained.append(train_layout(pool, config, world_size(layout), folder, SHORT))
    compare(trained[1], trained[0])


@pytest.mark.parametrize(
    ("batch_size", "parallel", "more", "words"),
    [
        (14, {"dp": 8}, {}, "at least 16"),
        (15, {"dp": 2}, {}, "use a multiple of 2"),
        (14, {"pp": 2, "dp": 2, "schedule": "interleaved", "vp": 2}, {}, "use a multiple of 8, or"),
        (14, {"dp": 2}, {"health": {"replay_every": 2}}, "health.replay_every=0"),
        (14, {"dp": 2}, {"train": {"batch_ramp": [2, 2, 20]}}, "multiples of 4"),
    ],
)
def test_what_needs_equal_numbers_is_refused_with_a_remedy(
    batch_size: int, parallel: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    config = _config(batch_size, parallel)
    for table, values in more.items():
        config[table] = config.get(table, {}) | values
    with pytest.raises(ConfigError) as caught:
        from_dict(RunConfig, config)
    assert words in caught.value.remedy
