"""One pool of worker processes for all tests of the trainer's compute path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from headway.testkit.trainer.pool import WorkerPool, worker_pool


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    with worker_pool(4) as workers:
        yield workers
