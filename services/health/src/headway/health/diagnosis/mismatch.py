"""Ranks that disagree about what the next operation of their group is: a fault of the program."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from headway.health.diagnosis.diagnosis import ranks_in_words
from headway.health.diagnosis.positions import Operation, Scene


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first operation of a group that its members carry out differently."""

    group: str
    sequence: int
    sides: tuple[tuple[Operation, tuple[int, ...]], ...]
    """What which ranks do, most ranks first. Which side is wrong cannot be told from this."""

    def __str__(self) -> str:
        has_types = len(_dtypes([operation for operation, _ in self.sides])) > 1
        sides = ", ".join(
            f"{ranks_in_words(ranks)} {operation}"
            + (f" of type {operation.dtype or 'unknown'}" if has_types else "")
            for operation, ranks in self.sides
        )
        return f"the ranks run different programs from {self.sequence} of {self.group} on: {sides}"


def find_mismatch(scene: Scene) -> Mismatch | None:
    """The mismatch with the fewest operations before it in its group, or None.

    An operation of which only one member is known is compared with nobody.
    """
    known: dict[tuple[str, int], dict[Operation, list[int]]] = defaultdict(dict)
    for rank, position in scene.positions.items():
        for key, operation in position.operations.items():
            known[key].setdefault(operation, []).append(rank)
    found = [
        (sequence, group)
        for (group, sequence), sides in known.items()
        if len(sides) > 1
        and not scene.groups[group].is_message
        and _differ(list(sides))
        and not _is_over(scene, group, sequence)
    ]
    if not found:
        return None
    sequence, group = min(found)
    sides = sorted(known[group, sequence].items(), key=lambda side: (-len(side[1]), side[1]))
    return Mismatch(
        group, sequence, tuple((operation, tuple(sorted(ranks))) for operation, ranks in sides)
    )


def _is_over(scene: Scene, group: str, sequence: int) -> bool:
    """Whether all members have finished it: then they agreed, whatever each calls it."""
    members = [scene.positions.get(rank) for rank in scene.groups[group].members]
    return all(one is not None and one.has_finished(group, sequence) for one in members)


def _differ(operations: list[Operation]) -> bool:
    if len({one.name for one in operations}) > 1:
        return True
    if operations[0].has_own_sizes:
        return False
    sizes = {one.num_elements for one in operations if one.num_elements >= 0}
    return len(sizes) > 1 or len(_dtypes(operations)) > 1


def _dtypes(operations: list[Operation]) -> set[str]:
    return {one.dtype for one in operations if one.dtype}
