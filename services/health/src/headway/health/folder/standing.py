"""Where the ranks of a hung job stand, in words."""

from __future__ import annotations

from headway.health.diagnosis.positions import Scene
from headway.health.diagnosis.wait_for import Holdup
from headway.health.folder.evidence import Evidence
from headway.health.folder.scene import title


def operation_of(scene: Scene, found: Holdup) -> str:
    for position in scene.positions.values():
        if (known := position.operations.get((found.group, found.sequence))) is not None:
            return known.name
    return "operation"


def device_stand(evidence: Evidence, scene: Scene, found: Holdup) -> str:
    """Where the device of the first of the ranks stands: its oldest operation not finished."""
    position = scene.positions[found.ranks[0]]
    first = position.pending[0]
    group, operation = (
        scene.groups[first.group],
        position.operations.get((first.group, first.sequence)),
    )
    if group.is_message:
        source, destination = group.members
        to = f"send to rank {destination}" if source == position.rank else (
            f"receive from rank {source}"
        )  # fmt: skip
        return f"never began the {to}"
    name = operation.name if operation else "operation"
    what = f"{name} {first.sequence} of {title(evidence, first.group)}"
    others = (scene.positions.get(rank) for rank in group.members if rank != position.rank)
    if any(one is not None and one.has_finished(first.group, first.sequence) for one in others):
        return f"has not finished {what}, which others have"
    return f"never began {what}"


def last_received(scene: Scene, rank: int) -> str:
    """What the device has finished last of the messages it received."""
    position = scene.positions[rank]
    received = [
        (done, scene.groups[name].members[0])
        for name, done in position.done.items()
        if done and scene.groups[name].is_message and scene.groups[name].members[1] == rank
    ]
    if not received:
        return ""
    done, source = max(received)
    return (
        f"received micro-batch {done - 1} from rank {source} (counted from 0, from the oldest "
        "message in the dumps on)"
    )


def waiting_ranks(scene: Scene, found: Holdup) -> tuple[int, ...]:
    return tuple(
        sorted(
            rank
            for rank, position in scene.positions.items()
            if rank not in found.ranks and position.pending
        )
    )
