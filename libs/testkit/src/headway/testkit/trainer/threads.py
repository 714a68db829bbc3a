"""Ranks as threads of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT_S = 60.0


def run_threads(size: int, member: Callable[[int], T], leave: Callable[[], None]) -> list[T]:
    """Run ``member`` once per rank, each in a thread of its own; results in rank order.

    Args:
        size: number of ranks.
        member: gets the rank.
        leave: frees the others when a member fails.

    Raises:
        BaseException: the first failure of a member that is not a barrier broken by another.
        AssertionError: a member did not end.
    """
    results: list[Any] = [None] * size
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = member(rank)
        except BaseException as failure:
            failures.append(failure)
            leave()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    failures.sort(key=lambda failure: isinstance(failure, threading.BrokenBarrierError))
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), "a rank did not end"
    return results
