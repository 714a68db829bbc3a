"""Real gloo groups whose ranks are threads of one process: values and messages without a pool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from headway.common.plan.grid import Grid
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.groups import Groups, build
from headway.trainer.comm.store import StoreEndpoint

T = TypeVar("T")
LIMIT_S = 60.0


def over_gloo(grid: Grid, member: Callable[[Groups], T]) -> list[T]:
    """Run ``member`` on every rank of real groups, each rank in a thread; results in rank order.

    Raises:
        BaseException: the first failure of a member.
    """
    endpoints: SimpleQueue[StoreEndpoint] = SimpleQueue()
    results: dict[int, Any] = {}
    last = threading.Barrier(grid.world_size, timeout=LIMIT_S)

    def announce(endpoint: StoreEndpoint) -> None:
        for _ in range(grid.world_size - 1):
            endpoints.put(endpoint)

    def run(rank: int) -> None:
        joined = build(
            0,
            grid,
            rank,
            host="127.0.0.1",
            announce=announce,
            lookup=lambda: endpoints.get(timeout=LIMIT_S),
            channels=Channels(),
            timeout_s=20.0,
        )
        try:
            results[rank] = member(joined)
            last.wait()
        except BaseException as error:
            results[rank] = error
            last.abort()
        finally:
            joined.release()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(grid.world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    failures = [result for result in results.values() if isinstance(result, BaseException)]
    broken = [f for f in failures if not isinstance(f, threading.BrokenBarrierError)]
    for failure in broken or failures:
        raise failure
    assert not any(thread.is_alive() for thread in threads)
    return [results[rank] for rank in range(grid.world_size)]
