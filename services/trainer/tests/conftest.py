"""What tests of the compute path share: one pool of worker processes, one rank in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import private_roots
from headway.testkit.trainer.pool import WorkerPool, worker_pool
from headway.testkit.trainer.sessions import one_rank
from headway.trainer.comm.fence import Fence
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.store import StoreEndpoint
from headway.trainer.config import RunConfig
from headway.trainer.worker.link import WorkerStatus
from headway.trainer.worker.rank import Rank


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    with worker_pool(4) as workers:
        yield workers


@pytest.fixture
def one_thread() -> Iterator[None]:
    """More threads than cores make small tensors slow."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Context:
    """What a rank has of its worker."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.run_dir = RunDir.create(folder, run_id=new_run_id())
        self.config = config
        self.paths = NodePaths(self.run_dir.run_id, 0).create()
        self.view, self.commands, self.fence = WorkerStatus(), [], Fence()
        self.link: Any = None

    def announce(self, generation: int, endpoint: StoreEndpoint) -> None:
        """Nobody asks a world of one."""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    """A world of one that has joined its first generation; no service runs beside it."""
    with private_roots():
        made = Rank(Context(tmp_path / "run", one_rank()), 0)
        made._session.join(Groups.alone())
        yield made
        made._session.leave()
        made.close()
