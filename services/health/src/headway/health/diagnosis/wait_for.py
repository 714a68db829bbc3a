"""Finds which ranks hold up a hung run: the sinks of the graph of who waits for whom.

A rank waits for every member of a group that has not entered the operation which the rank is in. A
rank that others wait for and that itself waits for nobody is a culprit, as in MegaScale 5.2, where
people find it on a picture. All of them are named: of two ranks that hang at once, neither explains
the other.

Operations are nodes of the graph as well: a rank leads to what it is in, and that to each member
that is missing. So the graph has as many edges as the groups have members. An operation that every
member has entered and none has finished leads nowhere: then what is between them is at fault. A
circle without a way out is a deadlock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from headway.health.diagnosis.positions import Pending, Position, Scene

Kind = Literal["missing", "device", "ended", "unreported", "transport", "deadlock"]
Operation = tuple[str, int]
"""Group and sequence."""
Node = int | Operation
"""A rank, or what ranks are in."""


@dataclass(frozen=True, slots=True)
class Holdup:
    """One thing that a hung run waits for in the end."""

    kind: Kind
    """``missing``: the host of the ranks never entered the operation. ``device``: it did, and the
    device has not begun it, or has not finished what has finished elsewhere. ``ended``: their
    processes are over. ``unreported``: nothing is known of them. ``transport``: all have entered it
    and none has finished. ``deadlock``: the ranks wait for each other in a circle."""
    ranks: tuple[int, ...]
    group: str
    sequence: int
    """The operation in which others wait; of several, the one in which most ranks do."""
    num_waiting: int
    """Ranks that wait in this operation."""


@dataclass(slots=True)
class Graph:
    """Edges in both directions."""

    leads_to: dict[Node, list[Node]]
    comes_from: dict[Node, list[Node]]
    left_behind: dict[int, Operation]
    """Ranks whose device has not finished what others have."""

    def add(self, start: Node, end: Node) -> None:
        self.leads_to[start].append(end)
        self.comes_from[end].append(start)

    def behind(self, ends: Iterable[Node]) -> set[Node]:
        """Every node from which one of the ends can be reached, with the ends."""
        seen = set(ends)
        stack = list(seen)
        while stack:
            new = [node for node in self.comes_from.get(stack.pop(), ()) if node not in seen]
            seen.update(new)
            stack += new
        return seen


def find_holdups(scene: Scene) -> list[Holdup]:
    """What a run waits for, if it has stopped; those that most ranks wait for come first.

    It does not judge whether the run has stopped: a healthy one that is seen in the middle of a
    step has holdups too.
    """
    return holdups_of(scene, build(scene))


def holdups_of(scene: Scene, graph: Graph) -> list[Holdup]:
    """The holdups of a scene, from the graph that ``build`` has made of it."""
    sinks = [node for node in graph.comes_from if not graph.leads_to.get(node)]
    found = _merge(_holdup(scene, graph, node) for node in sinks)
    explained = graph.behind(sinks)
    circle = _circle(graph, [node for node in graph.leads_to if node not in explained])
    if circle:
        found.append(_deadlock(graph, circle))
    if not found:  # nobody waits for them yet
        found = _merge(
            Holdup("device", (rank,), *operation, 0)
            for rank, operation in graph.left_behind.items()
        )
    return sorted(found, key=lambda one: (-one.num_waiting, one.ranks))


def build(scene: Scene) -> Graph:
    """The graph of operations that ranks wait in, and of ranks that each operation waits for."""
    graph = Graph(defaultdict(list), defaultdict(list), {})
    fronts = {rank: _front(position) for rank, position in scene.positions.items()}
    operations: set[Operation] = set()

    @cache
    def newest_done(group: str) -> int:
        """The newest operation that any member has finished."""
        members = (scene.positions.get(rank) for rank in scene.groups[group].members)
        return max((one.done.get(group, 0) for one in members if one is not None), default=0)

    for rank, front in fronts.items():
        for pending in front:
            operation = pending.group, pending.sequence
            may_be = _may_be_left_behind(scene, rank, pending)
            if may_be and newest_done(pending.group) >= pending.sequence:
                graph.left_behind[rank] = operation
            else:
                operations.add(operation)
                graph.add(rank, operation)
    for operation in operations:
        for rank in _missing(scene, fronts, *operation):
            graph.add(operation, rank)
    return graph


def _front(position: Position) -> tuple[Pending, ...]:
    """The operations that a rank is in: what is queued behind one has not begun."""
    if position.is_working or position.has_ended:
        return ()
    if position.knows_starts:
        return tuple(one for one in position.pending if one.has_begun)
    return position.pending[:1] if position.runs_ahead else position.pending


def _may_be_left_behind(scene: Scene, rank: int, pending: Pending) -> bool:
    """Whether others may have finished what a device has not: then it waits for nobody there.

    A CPU's transport may lack the last bytes of an operation that has finished elsewhere.
    """
    position = scene.positions[rank]
    operation = position.operations.get((pending.group, pending.sequence))
    group = scene.groups.get(pending.group)
    if group is None or group.is_message or group.is_composite or not position.runs_ahead:
        return False
    return operation is None or not operation.is_one_sided


def _missing(
    scene: Scene, fronts: dict[int, tuple[Pending, ...]], group: str, sequence: int
) -> list[int]:
    """Members that have not entered an operation, or have only queued it for their device."""
    found = []
    for rank in scene.groups[group].members if group in scene.groups else ():
        position = scene.positions.get(rank)
        if (
            position is None
            or not position.has_entered(group, sequence)
            or (position.runs_ahead and _is_queued(position, fronts[rank], group, sequence))
        ):
            found.append(rank)
    return found


def _is_queued(position: Position, front: tuple[Pending, ...], group: str, sequence: int) -> bool:
    """Whether an operation that has been entered is behind another one in the queue.

    It is behind those of its own group in any case, since these are carried out in their order.
    """
    return any(
        one.group == group and one.sequence <= sequence and one not in front
        for one in position.pending
    )


def _holdup(scene: Scene, graph: Graph, sink: Node) -> Holdup:
    if isinstance(sink, tuple):
        group, sequence = sink
        members = scene.groups[group].members if group in scene.groups else ()
        return Holdup("transport", members, group, sequence, len(graph.comes_from[sink]))
    operation = max(graph.comes_from[sink], key=lambda node: len(graph.comes_from[node]))
    assert isinstance(operation, tuple), "only operations lead to ranks"
    kind = _kind(scene.positions.get(sink))
    return Holdup(kind, (sink,), *operation, len(graph.comes_from[operation]))


def _kind(position: Position | None) -> Kind:
    if position is None:
        return "unreported"
    if position.has_ended:
        return "ended"
    return "device" if position.pending and position.runs_ahead else "missing"


def _merge(holdups: Iterable[Holdup]) -> list[Holdup]:
    """One for all ranks that are missing in the same operation for the same reason."""
    found: dict[tuple[str, str, int], Holdup] = {}
    for one in holdups:
        key = one.kind, one.group, one.sequence
        known = found.get(key)
        ranks = tuple(sorted({*one.ranks, *(known.ranks if known else ())}))
        found[key] = Holdup(one.kind, ranks, one.group, one.sequence, one.num_waiting)
    return list(found.values())


def _circle(graph: Graph, nodes: list[Node]) -> list[Node]:
    """A circle among nodes that all lead only to one another; empty without such nodes."""
    path: list[Node] = []
    place: dict[Node, int] = {}
    node = min(nodes, key=str, default=None)
    while node is not None and node not in place:
        place[node] = len(path)
        path.append(node)
        node = min(graph.leads_to[node], key=str)
    return [] if node is None else path[place[node] :]


def _deadlock(graph: Graph, circle: list[Node]) -> Holdup:
    ranks = tuple(sorted(node for node in circle if isinstance(node, int)))
    operation = next(node for node in circle if isinstance(node, tuple))
    return Holdup("deadlock", ranks, *operation, len(graph.comes_from[operation]))
