"""Turns the dumps of the ranks of a job into one scene."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from headway.health.diagnosis.positions import Group, Operation, Pending, Position, Scene
from headway.health.dumps.recorder import Dump, Entry

_DEFAULT = "default_pg"


def scene_of(dumps: Collection[Dump]) -> Scene:
    """Where every rank of the dumps is; ranks without a dump are members of their groups only.

    A dump tells which of NCCL's operations have finished. Of gloo's it does not: there one that
    every member has entered counts as finished.
    """
    groups = _groups(dumps)
    dumps = [replace(dump, entries=tuple(_number(dump, groups))) for dump in dumps]
    lanes = _lanes(dumps)
    positions = {dump.rank: _position(dump, lanes) for dump in dumps}
    _add_status(dumps, groups, positions)
    scene = Scene({**groups, **{name: lane for name, (lane, _) in lanes.items()}}, positions)
    for dump in dumps:
        if not dump.is_nccl:
            _finish_by_others(scene, positions[dump.rank])
    return scene


def _groups(dumps: Collection[Dump]) -> dict[str, Group]:
    """Members as the recorders wrote them; else every rank that has entered something there."""
    members: dict[str, set[int]] = defaultdict(set)
    merged: dict[str, tuple[int, ...]] = {}
    for dump in dumps:
        for name, ranks in dump.members.items():
            if merged.get(name) is not ranks:  # most dumps list the same members
                members[name].update(ranks)
                merged[name] = ranks
    written = set(members)
    everybody = range(max((dump.rank for dump in dumps), default=-1) + 1)
    for dump in dumps:
        for entry in dump.entries:
            if entry.group not in written:
                is_default = entry.description == _DEFAULT or entry.group == "0"
                members[entry.group].update(everybody if is_default else [dump.rank])
    return {name: Group(name, tuple(sorted(ranks))) for name, ranks in members.items()}


def _number(dump: Dump, groups: Mapping[str, Group]) -> Iterable[Entry]:
    """The entries in order, with messages moved to a group for each pair and direction.

    The recorder's own numbers count the messages of a rank to all others together.
    """
    for entry in sorted(dump.entries, key=lambda one: one.order):
        if not entry.is_message:
            yield entry
            continue
        members = groups[entry.group].members
        if max(entry.source, entry.destination) < len(members):
            ends = members[entry.source], members[entry.destination]
            if dump.rank not in ends:
                continue  # the file has another rank's name
            name = f"messages {ends[0]} to {ends[1]}"
            yield replace(entry, group=name, source=ends[0], destination=ends[1])


def _lanes(dumps: Iterable[Dump]) -> dict[str, tuple[Group, int]]:
    """The groups of messages, and how many of each have arrived.

    Both ends have finished the same messages, or one end has not noticed yet.
    """
    found: dict[str, tuple[Group, int]] = {}
    for dump in dumps:
        done = Counter(one.group for one in dump.entries if one.is_message and one.is_completed)
        for entry in dump.entries:
            if entry.is_message:
                lane = Group(entry.group, (entry.source, entry.destination), is_message=True)
                known = found.get(entry.group, (lane, 0))[1]
                found[entry.group] = lane, max(known, done[entry.group])
    return found


def _position(dump: Dump, lanes: Mapping[str, tuple[Group, int]]) -> Position:
    position = Position(dump.rank, runs_ahead=dump.is_nccl, knows_starts=dump.knows_starts)
    for name, (lane, num_done) in lanes.items():
        if dump.rank in lane.members:
            position.entered[name] = position.done[name] = num_done
    pending = []
    for entry in dump.entries:
        group, sequence = entry.group, entry.sequence
        if entry.is_message:
            if entry.is_completed:
                continue
            sequence = position.entered[group] + 1
        position.operations[group, sequence] = Operation(
            entry.name, entry.num_elements, entry.dtype
        )
        position.entered[group] = max(position.entered.get(group, 0), sequence)
        if entry.is_completed:
            position.done[group] = max(position.done.get(group, 0), sequence)
        else:
            has_begun = entry.has_started if dump.knows_starts else None
            pending.append(Pending(group, sequence, has_begun))
    position.pending = tuple(pending)
    return position


def _add_status(
    dumps: Collection[Dump], groups: Mapping[str, Group], positions: Mapping[int, Position]
) -> None:
    """What ranks have entered and finished, where their dumps hold active operations only.

    A status is listed by the number that a rank itself gives the group. Ranks create their groups
    in the same order, so a number stands for groups of one description on all of them.
    """
    kinds = _kinds_of_number(dumps)
    names: dict[tuple[str, int], set[str]] = defaultdict(set)
    known = {(e.description, e.group) for d in dumps for e in d.entries if not e.is_message}
    for description, name in known:
        for rank in groups[name].members:
            names[description, rank].add(name)
    for dump in dumps:
        position = positions[dump.rank]
        own = {one.local_id: one.group for one in dump.entries if not one.is_message}
        for number, description in kinds.items():
            # several groups of a rank may have one description, as those without any
            alike = names[description, dump.rank]
            group = own.get(number, next(iter(alike)) if len(alike) == 1 else None)
            if group is not None and number in dump.enqueued:
                entered = position.entered.get(group, 0)
                position.entered[group] = max(entered, dump.enqueued[number])
                done = position.done.get(group, 0)
                position.done[group] = max(done, dump.completed.get(number, 0))


def _kinds_of_number(dumps: Iterable[Dump]) -> dict[int, str]:
    """Group number -> description, except of groups with messages: a status counts those too."""
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    mixed = set()
    for dump in dumps:
        for entry in dump.entries:
            votes[entry.local_id][entry.description] += 1
            if entry.is_message:
                mixed.add(entry.local_id)
    return {
        number: vote.most_common(1)[0][0] for number, vote in votes.items() if number not in mixed
    }


def _finish_by_others(scene: Scene, position: Position) -> None:
    """Take an operation that every member has entered as finished."""
    for name, entered in position.entered.items():
        members = scene.groups[name].members
        others = [scene.positions.get(rank) for rank in members]
        position.done[name] = min(
            [entered, *(one.entered.get(name, 0) if one else 0 for one in others)]
        )
    position.pending = tuple(
        one for one in position.pending if one.sequence > position.done[one.group]
    )
