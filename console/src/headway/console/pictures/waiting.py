"""Picture of who waits for whom: operations and ranks in columns by their distance to a culprit."""

from __future__ import annotations

import numpy as np
from headway.common.output import counted
from headway.console.analysis.waiting import ways
from headway.console.pictures.page import Picture
from headway.health.client import WaitGraph

MAX_EDGES = 60_000
"""Edges beside the shortest ways; what exceeds them is counted."""
MAX_NAME = 120
_WHY = {
    "missing": "never entered {}",
    "device": "its device is stuck; others wait for it in {}",
    "ended": "has ended before {}",
    "unreported": "nothing is known of it; others wait for it in {}",
    "deadlock": "in a circle of waits, at {}",
}
_NOTE = (
    "Left: the ranks and operations that everything else waits for in the end. Each further "
    "column waits for the one before. Squares are ranks, diamonds the operations in which they "
    "wait. Click a rank to see its way to a culprit."
)


def wait_graph(graph: WaitGraph) -> Picture:
    """Draw who waits for whom, for any number of ranks."""
    found = ways(graph)
    why = culprits(graph)
    names = [name[:MAX_NAME] for name in graph.operations]
    edges = {"waits": graph.waits[:MAX_EDGES], "missing": graph.missing[:MAX_EDGES]}
    data = {
        "ranks": found.ranks,
        "rankDepth": found.rank_depth,
        "rankWaitsIn": found.rank_waits_in,
        "operations": names,
        "operationDepth": found.operation_depth,
        "operationWaitsFor": found.operation_waits_for,
        "marked": np.array([*why], np.int32),
        "why": [*why.values()],
        "others": graph.num_ranks - len(found.ranks),
        **{name: np.array(pairs, np.int32).reshape(-1, 2) for name, pairs in edges.items()},
    }
    return Picture("graph", f"Who waits for whom: {_summary(graph)}", data, _NOTE)


def culprits(graph: WaitGraph) -> dict[int, str]:
    """Rank -> why it is one."""
    waited_for_in = {rank: graph.operations[place] for place, rank in reversed(graph.missing)}
    return {
        rank: _WHY[one.kind].format(waited_for_in.get(rank, "an operation")[:MAX_NAME])
        for one in graph.holdups
        if one.kind in _WHY
        for rank in one.ranks
    }


def _summary(graph: WaitGraph) -> str:
    stuck = sum(one.kind == "transport" for one in graph.holdups)
    parts = [counted(len(graph.culprits), "culprit")]
    if stuck:
        itself = "itself" if stuck == 1 else "themselves"
        parts.append(f"{counted(stuck, 'operation')} stuck in {itself}")
    waiting = len({rank for rank, _ in graph.waits})
    return f"{', '.join(parts)}, {counted(waiting, 'rank')} waiting"
