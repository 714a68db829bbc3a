"""Where the ranks of a job are, from its dumps and from what its watchdogs logged."""

from __future__ import annotations

from collections.abc import Iterable

from headway.health.diagnosis.positions import Group, Operation, Pending, Position, Scene
from headway.health.dumps.recorded_scene import scene_of
from headway.health.dumps.same_names import own_name
from headway.health.dumps.watchdog import GroupStatus, Timeout
from headway.health.folder.evidence import Evidence

_DEFAULT = "default_pg"


def whole_scene(evidence: Evidence) -> Scene:
    """The scene of the dumps; ranks without one are added from the lines of their watchdogs."""
    scene = scene_of(evidence.dumps)
    groups, positions = dict(scene.groups), dict(scene.positions)
    statuses = [one for log in evidence.logs.values() for one in log.watchdog.statuses]
    timeouts = [one for log in evidence.logs.values() for one in log.watchdog.timeouts]
    if positions and any(dump.members for dump in evidence.dumps):
        statuses = [one for one in statuses if one.rank not in positions]
        timeouts = [one for one in timeouts if one.rank not in positions]
    _add(groups, positions, statuses, timeouts)
    return Scene(groups, positions)


def _add(
    groups: dict[str, Group],
    positions: dict[int, Position],
    statuses: Iterable[GroupStatus],
    timeouts: Iterable[Timeout],
) -> None:
    of_rank: dict[int, str] = {}
    for status in statuses:
        name = own_name(_name(status), status.rank, groups)
        of_rank[status.rank] = name
        position = positions.setdefault(status.rank, Position(status.rank, runs_ahead=True))
        position.entered[name] = max(position.entered.get(name, 0), status.enqueued)
        position.done[name] = max(position.done.get(name, 0), status.completed)
        if status.completed < status.enqueued:
            pending = Pending(name, status.completed + 1)
            position.pending = (*(p for p in position.pending if p.group != name), pending)
        members = groups[name].members if name in groups else ()
        ranks = {*members, status.rank}
        if status.description == _DEFAULT or name == "0":
            ranks |= set(range(max(ranks)))  # it has all ranks, also those that logged nothing
        groups[name] = Group(name, tuple(sorted(ranks)))
    for timeout in timeouts:
        name = of_rank.get(timeout.rank, timeout.group or _DEFAULT)
        if timeout.sequence >= 0 and timeout.rank in positions:
            operation = Operation(timeout.op.strip("_"), timeout.num_in)
            positions[timeout.rank].operations[name, timeout.sequence] = operation


def _name(status: GroupStatus) -> str:
    """Name of the group as in dumps, where the default group has the name 0."""
    return status.group or ("0" if status.description == _DEFAULT else status.description)


def titles(evidence: Evidence) -> dict[str, str]:
    """What people call each group of the dumps."""
    found: dict[str, str] = {"0": _DEFAULT}
    for dump in evidence.dumps:
        for entry in dump.entries:
            if entry.description:
                name = f"{entry.description} {entry.group}"
                found[entry.group] = entry.description if entry.group == "0" else name
    return found


def title(evidence: Evidence, group: str) -> str:
    """What people call a group."""
    return titles(evidence).get(group, group)
