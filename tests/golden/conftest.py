"""One pool of eight workers for all golden tests; each imports torch once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.testkit.trainer.layouts import STEPS, single
from headway.testkit.trainer.pool import WorkerPool, worker_pool
from headway.testkit.trainer.training import Trained, train_layout


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    with worker_pool(8) as workers:
        yield workers


class References:
    """The single process's run, once per model and type."""

    def __init__(self, pool: WorkerPool, folder: Path) -> None:
        self._pool, self._folder = pool, folder
        self._known: dict[tuple[str, str], Trained] = {}

    def __call__(self, block: str, dtype: str, family: str = "") -> Trained:
        key = (family or block, dtype)
        if key not in self._known:
            folder = self._folder / "-".join(key)
            config = single(block, dtype, family)
            self._known[key] = train_layout(self._pool, config, 1, folder, STEPS)
        return self._known[key]


@pytest.fixture(scope="session")
def reference(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(pool, tmp_path_factory.mktemp("single"))
