"""The graph of who waits for whom, as data for pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.health.diagnosis.positions import Scene
from headway.health.diagnosis.wait_for import Holdup, Operation, build, holdups_of


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """An operation lies between those that wait in it and those that have not entered it."""

    operations: tuple[str, ...]
    """For people, such as ``all_reduce 2041 of default_pg``."""
    waits: tuple[tuple[int, int], ...]
    """Rank -> index of an operation that it is in."""
    missing: tuple[tuple[int, int], ...]
    """Index of an operation -> rank that it waits for; -1 for members that nothing is known of."""
    holdups: tuple[Holdup, ...]
    """What all of them wait for in the end, as ``find_holdups`` returns it."""
    num_ranks: int
    """Ranks that were observed, those that wait for nobody included."""

    @property
    def culprits(self) -> tuple[int, ...]:
        """Ranks that hold up the others. Of a transport that is stuck no rank is one."""
        named = (one.ranks for one in self.holdups if one.kind != "transport")
        return tuple(sorted({rank for ranks in named for rank in ranks}))


def wait_graph(scene: Scene, title: Callable[[str], str] = str) -> WaitGraph:
    """The graph of a scene.

    Args:
        title: what people call a group.
    """
    graph = build(scene)
    waits: list[tuple[int, Operation]] = []
    missing: list[tuple[Operation, int]] = []
    for start, ends in graph.leads_to.items():
        for end in ends:
            if isinstance(start, int) and isinstance(end, tuple):
                waits.append((start, end))
            elif isinstance(start, tuple) and isinstance(end, int):
                missing.append((start, end))
    order = {one: place for place, one in enumerate(dict.fromkeys(end for _, end in waits))}
    names = _names(scene)
    return WaitGraph(
        tuple(f"{names.get(one, 'operation')} {one[1]} of {title(one[0])}" for one in order),
        tuple((rank, order[operation]) for rank, operation in waits),
        tuple((order[operation], rank) for operation, rank in missing),
        tuple(holdups_of(scene, graph)),
        len(scene.positions),
    )


def _names(scene: Scene) -> dict[Operation, str]:
    """What each operation is, by any rank that recorded it."""
    found: dict[Operation, str] = {}
    for position in scene.positions.values():
        for operation, known in position.operations.items():
            found.setdefault(operation, known.name)
    return found
