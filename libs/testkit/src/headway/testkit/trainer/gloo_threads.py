"""Real gloo groups whose ranks are threads of one process: values and messages without a pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

from headway.common.node.group_table import GroupTable
from headway.common.plan.grid import Grid
from headway.testkit.trainer.threads import LIMIT_S, run_threads
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.groups import Groups, build
from headway.trainer.comm.store import StoreEndpoint

T = TypeVar("T")


def over_gloo(
    grid: Grid,
    member: Callable[[Groups], T],
    tables: Sequence[GroupTable] | None = None,
    *,
    joins_ends: bool = False,
) -> list[T]:
    """Run ``member`` on every rank of real groups, counted in ``tables``; see ``run_threads``."""
    endpoints: SimpleQueue[StoreEndpoint] = SimpleQueue()
    last = threading.Barrier(grid.world_size, timeout=LIMIT_S)

    def announce(endpoint: StoreEndpoint) -> None:
        for _ in range(grid.world_size - 1):
            endpoints.put(endpoint)

    def run(rank: int) -> T:
        joined = build(
            0,
            grid,
            rank,
            host="127.0.0.1",
            announce=announce,
            lookup=lambda: endpoints.get(timeout=LIMIT_S),
            channels=Channels(),
            timeout_s=20.0,
            joins_ends=joins_ends,
            table=tables[rank] if tables is not None else None,
        )
        try:
            result = member(joined)
            last.wait()
            return result
        except BaseException:
            last.abort()
            raise
        finally:
            joined.release()

    return run_threads(grid.world_size, run, last.abort)
