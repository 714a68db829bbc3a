"""How far each waiting rank is from what holds it up, and over whom it gets there."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from headway.health.client import WaitGraph

Numbers = npt.NDArray[np.int32]
NOTHING = -1


@dataclass(frozen=True)
class Ways:
    """The shortest way of each rank and operation to a culprit; -1 where there is none.

    ``depth`` counts ranks on the way: 0 of a culprit, and of an operation that is stuck in itself.
    """

    ranks: Numbers
    """Those that wait or are waited for, in order."""
    rank_depth: Numbers
    rank_waits_in: Numbers
    """Index of the operation that is next on its way."""
    operation_depth: Numbers
    operation_waits_for: Numbers
    """The rank that is next on its way."""


def ways(graph: WaitGraph) -> Ways:
    """By breadth from the ends of the graph backwards, and from the ranks of a deadlock."""
    waiters: dict[int, list[int]] = defaultdict(list)
    waits_for: dict[int, list[int]] = defaultdict(list)
    for rank, operation in graph.waits:
        waiters[operation].append(rank)
    for operation, rank in graph.missing:
        waits_for[rank].append(operation)
    ranks = sorted({rank for rank, _ in graph.waits} | set(waits_for))
    place = {rank: index for index, rank in enumerate(ranks)}
    found = Ways(
        np.array(ranks, np.int32), *(_none(ranks), _none(ranks)),
        *(_none(graph.operations), _none(graph.operations)),
    )  # fmt: skip
    leads_on = {operation for operation, _ in graph.missing}
    pending = deque(rank for rank in graph.culprits if rank in place)
    for rank in pending:
        found.rank_depth[place[rank]] = 0
    for operation in range(len(graph.operations)):
        if operation not in leads_on:
            _enter(found, operation, 0, NOTHING, waiters, place, pending)
    while pending:
        rank = pending.popleft()
        depth = int(found.rank_depth[place[rank]])
        for operation in waits_for[rank]:
            if found.operation_depth[operation] == NOTHING:
                _enter(found, operation, depth, rank, waiters, place, pending)
    return found


def _enter(
    found: Ways,
    operation: int,
    depth: int,
    rank: int,
    waiters: dict[int, list[int]],
    place: dict[int, int],
    pending: deque[int],
) -> None:
    """Reach an operation, and by it those that wait in it."""
    found.operation_depth[operation], found.operation_waits_for[operation] = depth, rank
    for waiter in waiters[operation]:
        index = place[waiter]
        if found.rank_depth[index] == NOTHING:
            found.rank_depth[index] = depth + 1
            found.rank_waits_in[index] = operation
            pending.append(waiter)


def _none(of: list[int] | tuple[str, ...]) -> Numbers:
    return np.full(len(of), NOTHING, np.int32)
