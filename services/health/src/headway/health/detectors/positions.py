"""Turns what agents see of the ranks of a generation into positions in their groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from headway.common.plan.collectives import GroupKind, Op, kind_of
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.messages.health import GroupRow
from headway.health.config import HealthConfig
from headway.health.detectors.rank_view import RankView
from headway.health.diagnosis.positions import Group, Operation, Pending, Position, Scene

ANYTHING = "the other ranks"
"""The group in which a rank waits that is in none of those counted, as in an agreement before its
first step: it waits for every rank that does not wait itself."""
_MESSAGES = (GroupKind.FORWARD, GroupKind.FORWARD_WRAP, GroupKind.BACKWARD, GroupKind.BACKWARD_WRAP)
_IN_ACTION: dict[str, frozenset[GroupKind]] = {
    Kind.RECV_FORWARD.name: frozenset(_MESSAGES[:2]),
    Kind.SEND_FORWARD.name: frozenset(_MESSAGES[:2]),
    Kind.RECV_BACKWARD.name: frozenset(_MESSAGES[2:]),
    Kind.SEND_BACKWARD.name: frozenset(_MESSAGES[2:]),
    Kind.ALL_GATHER.name: frozenset({GroupKind.DP}),
    Kind.REDUCE_SCATTER.name: frozenset({GroupKind.DP}),
    Kind.NORM.name: frozenset(GroupKind),
    Kind.FORWARD.name: frozenset({GroupKind.TP}),
    Kind.BACKWARD.name: frozenset({GroupKind.TP}),
}
"""What a device that is in an action may be waiting in."""


def scene_of(views: Collection[RankView], config: HealthConfig) -> Scene:
    """Where the ranks of a generation are, as far as their beats tell."""
    members: dict[str, dict[int, GroupRow]] = defaultdict(dict)
    for view in views:
        for name, row in _rows(view):
            members[name][view.signals.rank] = row
    groups = {name: _group(name, rows) for name, rows in members.items()}
    ranks = tuple(sorted(view.signals.rank for view in views))
    groups[ANYTHING] = Group(ANYTHING, ranks)
    return Scene(groups, {view.signals.rank: _position(view, config) for view in views})


def _rows(view: RankView) -> Iterator[tuple[str, GroupRow]]:
    for row in view.signals.groups:
        if 2 * GroupKind.TP <= row.line < 2 * (max(GroupKind) + 1):
            yield _name(row), row


def _name(row: GroupRow) -> str:
    kind = kind_of(row.line)
    words = kind.name.lower().replace("_", " ")
    if kind >= GroupKind.FORWARD:
        return f"{words} messages of rank {row.number}"
    return f"{words} group of rank {row.number}"


def _group(name: str, rows: dict[int, GroupRow]) -> Group:
    is_message = any(kind_of(row.line) >= GroupKind.FORWARD for row in rows.values())
    # the sender has the even line
    members = sorted(rows, key=lambda rank: (is_message and rows[rank].line & 1, rank))
    return Group(name, tuple(members), is_message)


def _position(view: RankView, config: HealthConfig) -> Position:
    signals = view.signals
    is_held = view.is_frozen(config)
    is_on_device = signals.waits == "device"
    position = Position(
        signals.rank, is_working=is_held or not (view.waits_for_others or is_on_device)
    )
    rows = list(_rows(view))
    for name, row in rows:
        position.done[name] = row.done
        # what a process has entered that does not run makes no progress either
        position.entered[name] = row.done if is_held else row.entered
        position.operations[name, row.entered] = _operation(row)
    kinds = _of_device(view) if is_on_device else None
    position.runs_ahead = position.knows_starts = kinds is not None
    position.pending = tuple(
        Pending(name, row.done + 1, None if kinds is None else kind_of(row.line) in kinds)
        for name, row in rows
        if row.entered > row.done
    )
    if position.is_working:
        return position
    position.entered[ANYTHING] = 1
    if kinds is not None or not position.pending:
        position.pending += (Pending(ANYTHING, 1, None if kinds is None else False),)
    return position


def _of_device(view: RankView) -> frozenset[GroupKind] | None:
    """The kinds of groups that a device may be waiting in; None if it is not known where it is.

    Between two actions it may be waiting for its host, too.
    """
    place = view.signals.device
    if place is None or not place.action or place.is_end:
        return None
    return _IN_ACTION.get(place.action, frozenset())


def _operation(row: GroupRow) -> Operation:
    name = Op(row.op).name.lower() if row.op in Op.__members__.values() else f"op {row.op}"
    return Operation(name, row.nbytes)
