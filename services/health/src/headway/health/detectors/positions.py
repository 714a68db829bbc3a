"""Turns what agents see of the ranks of a generation into positions in their groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from headway.common.plan.collectives import NUM_LINES, GroupKind, Op, kind_of
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.group_table import GroupRow, unpack
from headway.health.config import HealthConfig
from headway.health.detectors.rank_view import RankView
from headway.health.diagnosis.positions import Group, Operation, Pending, Position, Scene

ANYTHING = "the other ranks"
"""The group in which a rank waits that is in none of those counted, as in an agreement before its
first step: it waits for every rank that does not wait itself."""
UNKNOWN = -1
"""Stands for all members of a group that have never been heard of."""
NAMES = 1 << 16
"""Names of groups, and operations, that are kept: a run of 12,288 ranks has 25,000 groups."""
_KINDS = {line: kind_of(line) for line in range(2 * GroupKind.TP, NUM_LINES)}
_COMPOSITE = (GroupKind.EVERY_RANK, GroupKind.STAGE)
"""Kinds of groups whose sums are made of gathers along one axis after the other."""


def _lines(*kinds: GroupKind, receives: bool = False) -> frozenset[int]:
    return frozenset(2 * kind + receives for kind in kinds)


_FORWARD, _BACKWARD = (
    (GroupKind.FORWARD, GroupKind.FORWARD_WRAP),
    (GroupKind.BACKWARD, GroupKind.BACKWARD_WRAP),
)
_TP, _SUMS = _lines(GroupKind.TP), _lines(GroupKind.EVERY_RANK)
_WAITS_IN: dict[str, frozenset[int]] = {
    Kind.RECV_FORWARD.name: _lines(*_FORWARD, receives=True),
    Kind.SEND_FORWARD.name: _lines(*_FORWARD),
    Kind.RECV_BACKWARD.name: _lines(*_BACKWARD, receives=True),
    Kind.SEND_BACKWARD.name: _lines(*_BACKWARD),
    Kind.ALL_GATHER.name: _lines(GroupKind.DP, GroupKind.STAGE)
    | _lines(GroupKind.TIED_TABLE, receives=True),
    Kind.REDUCE_SCATTER.name: _lines(GroupKind.DP, GroupKind.TIED_GRADIENT, GroupKind.TIED_TABLE)
    | _lines(GroupKind.TIED_GRADIENT, receives=True),
    Kind.NORM.name: _SUMS,
    Kind.SUMS.name: _SUMS,
    Kind.AGREEMENT.name: _SUMS,
    Kind.TENSOR_PARALLEL.name: _TP,
    Kind.FORWARD.name: _TP,
    Kind.BACKWARD.name: _TP,
    Kind.BACKWARD_INPUT.name: _TP,
    Kind.BACKWARD_WEIGHT.name: _TP,  # a gather that was begun in the pass before
    Kind.OPTIMIZER.name: frozenset(),
    Kind.SNAPSHOT.name: frozenset(),
    Kind.DATA.name: frozenset(),
}
"""The lines of the table in which a device that is in an action may be waiting; in other actions it
may wait for anything. The gathers that a sum over all ranks is made of are not counted as done one
by one on a device, so the sum itself stands for them."""


def scene_of(views: Collection[RankView], config: HealthConfig) -> Scene:
    """Where the ranks of a generation are, as far as their beats tell.

    Of one that is absent only the groups are used, so that it counts as a member.
    """
    members: dict[str, dict[int, GroupRow]] = defaultdict(dict)
    for view in views:
        for name, row in _rows(view):
            members[name][view.signals.rank] = row
    groups = {name: _group(name, rows) for name, rows in members.items()}
    ranks = tuple(sorted(view.signals.rank for view in views if not view.absence))
    groups[ANYTHING] = Group(ANYTHING, ranks)
    least = {name: min(row.entered for row in rows.values()) for name, rows in members.items()}
    positions = {
        view.signals.rank: _position(view, least, config)
        for view in views
        if view.absence != "unreported"
    }
    scene = Scene(groups, positions)
    for group in groups.values():
        if group.is_message:
            _arrived(scene, group)
    return scene


def _arrived(scene: Scene, group: Group) -> None:
    """A message that is done at one end is done at the other, which may not have looked yet."""
    positions = [scene.positions[rank] for rank in group.members if rank in scene.positions]
    arrived = max((position.done.get(group.name, 0) for position in positions), default=0)
    for position in positions:
        done = min(arrived, position.entered.get(group.name, 0))
        position.done[group.name] = done
        position.pending = tuple(
            replace(one, sequence=done + 1) if one.group == group.name else one
            for one in position.pending
            if one.group != group.name or position.entered[group.name] > done
        )


def _rows(view: RankView) -> Iterator[tuple[str, GroupRow]]:
    for row in unpack(view.signals.packed_groups):
        if row.line in _KINDS:
            yield _name(_KINDS[row.line], row.number), row


@lru_cache(maxsize=NAMES)
def _name(kind: GroupKind, number: int) -> str:
    words = kind.name.lower().replace("_", " ")
    if kind >= GroupKind.FORWARD:
        return f"{words} messages of rank {number}"
    return f"{words} group of rank {number}"


def _group(name: str, rows: dict[int, GroupRow]) -> Group:
    kind = kind_of(next(iter(rows.values())).line)
    is_message = kind >= GroupKind.FORWARD
    # the sender has the even line
    members = sorted(rows, key=lambda rank: (is_message and rows[rank].line & 1, rank))
    is_whole = len(members) >= max(row.size for row in rows.values())
    unknown = () if is_whole else (UNKNOWN,)
    return Group(name, (*members, *unknown), is_message, kind in _COMPOSITE)


def _position(view: RankView, least: Mapping[str, int], config: HealthConfig) -> Position:
    """``least``: what every member has entered, by group."""
    signals = view.signals
    if view.absence == "ended":
        entered = {name: row.entered for name, row in _rows(view)}
        return Position(signals.rank, entered, has_ended=True)
    is_held = view.is_frozen(config)
    # the host of a device waits for it, or polls for what it computes
    is_on_device = signals.waits == "device" or (
        signals.device is not None and signals.waits == "others"
    )
    position = Position(
        signals.rank, is_working=is_held or not (view.waits_for_others or is_on_device)
    )
    rows = list(_rows(view))
    for name, row in rows:
        position.done[name] = row.done
        # what a process has entered that does not run makes no progress either
        position.entered[name] = row.done if is_held else row.entered
        position.operations[name, row.entered] = _operation(row.op, row.nbytes)
    lines = _of_device(view, config) if is_on_device else None
    position.runs_ahead = position.knows_starts = lines is not None
    if lines is None:
        position.pending = _pending(rows, least)
    else:
        position.pending = tuple(
            _on_device(name, row, least[name], has_begun=row.line in lines)
            for name, row in rows
            if row.entered > row.done
        )
    if position.is_working:
        return position
    position.entered[ANYTHING] = 1
    if lines is not None or not position.pending:
        position.pending += (Pending(ANYTHING, 1, None if lines is None else False),)
    return position


def _pending(
    rows: Collection[tuple[str, GroupRow]], least: Mapping[str, int]
) -> tuple[Pending, ...]:
    """What the host of a rank is in.

    A sum that all have entered is not what it waits for, but one of the gathers in it.
    """
    found = [(name, row) for name, row in rows if row.entered > row.done]
    parts = [one for one in found if _KINDS[one[1].line] not in _COMPOSITE]
    return tuple(
        Pending(name, row.done + 1)
        for name, row in found
        if not parts or _KINDS[row.line] not in _COMPOSITE or least[name] <= row.done
    )


def _on_device(name: str, row: GroupRow, least: int, *, has_begun: bool) -> Pending:
    """What a device is in, or has in its queue.

    Only recorded waits show what is done there, so it may be further than that: then what holds it
    is rather what some member has not even queued.
    """
    is_behind = has_begun and row.done <= least < row.entered
    return Pending(name, (least if is_behind else row.done) + 1, has_begun)


def _of_device(view: RankView, config: HealthConfig) -> frozenset[int] | None:
    """The lines of its table that a device may be waiting in; None if it is not known where it is.

    Between two actions it may be waiting for its host, too. One that has not been asked of late may
    be anywhere: what asks it waits as well.
    """
    place = view.signals.device
    if place is None or place.is_end or place.asked_ago_s > config.silence_floor_s:
        return None
    return _WAITS_IN.get(place.action)


@lru_cache(maxsize=NAMES)
def _operation(op: int, nbytes: int) -> Operation:
    name = Op(op).name.lower() if op in Op.__members__.values() else f"op {op}"
    return Operation(name, nbytes)
