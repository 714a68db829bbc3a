"""The groups in which ranks communicate, with one number for each that all its members know.

Collectives of a group, and the messages between two stages, are carried out in the order in which
they are entered. So a rank's place in a group is one count, and what a group waits for is the
member whose count is lowest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from headway.common.plan.grid import AXES, Axis, Grid

_KIND_BITS = 24
_RANK_MASK = (1 << _KIND_BITS) - 1


class GroupKind(IntEnum):
    """What a group is for. The numbers are in flight records: never reuse one."""

    TP = 1  # the collectives of an axis
    DP = 2
    PP = 3
    EVERY_RANK = 4  # sums and agreements over all ranks, which are made of collectives of the axes
    STAGE = 5  # the same over the ranks of one pipeline stage
    FORWARD = 6  # activations, to the next stage
    FORWARD_WRAP = 7  # from the last rank to the first, or to the previous one with a V of chunks
    BACKWARD = 8  # their gradients, to the previous stage
    BACKWARD_WRAP = 9
    TIED_TABLE = 10  # the table of a tied model, from the first stage to the last
    TIED_GRADIENT = 11


class Op(IntEnum):
    """What a rank does in a group. The numbers are in flight records: never reuse one."""

    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    SEND = 4
    RECV = 5


AXIS_KINDS: dict[Axis, GroupKind] = {
    "tp": GroupKind.TP,
    "dp": GroupKind.DP,
    "pp": GroupKind.PP,
}
LANES: dict[tuple[Literal["forward", "backward"], bool], GroupKind] = {
    ("forward", True): GroupKind.FORWARD,
    ("forward", False): GroupKind.FORWARD_WRAP,
    ("backward", False): GroupKind.BACKWARD,
    ("backward", True): GroupKind.BACKWARD_WRAP,
}
"""Direction of the schedule, and whether the receiver's pipeline rank is the higher one."""
_STEPS = {GroupKind.FORWARD: 1, GroupKind.BACKWARD: -1}
_V_STEPS = _STEPS | {GroupKind.FORWARD_WRAP: -1, GroupKind.BACKWARD_WRAP: 1}
"""Kinds whose messages are between neighbours, and how far the receiver is from the sender."""
_BETWEEN_ENDS = {
    GroupKind.FORWARD_WRAP: "last",
    GroupKind.BACKWARD_WRAP: "first",
    GroupKind.TIED_TABLE: "first",
    GroupKind.TIED_GRADIENT: "last",
}
"""Kinds whose messages are between the first and the last rank, and which of them sends."""
NUM_LINES = 2 * (max(GroupKind) + 1)


@dataclass(frozen=True, slots=True)
class Membership:
    """A rank's part in one group: a collective's, or one end of its messages."""

    kind: GroupKind
    number: int
    """The group's lowest rank; of messages, the rank that sends them."""
    size: int
    is_receiver: bool = False

    @property
    def line(self) -> int:
        """Its line in the rank's table, which is the same on every rank."""
        return 2 * self.kind + self.is_receiver

    @property
    def group(self) -> int:
        """The group's number, equal on all its members and different from every other group's."""
        return group_id(self.kind, self.number)


def group_id(kind: GroupKind, number: int) -> int:
    """The number of a group, from its kind and its lowest or sending rank."""
    return kind << _KIND_BITS | number


def parts_of(group: int) -> tuple[GroupKind, int]:
    """The kind of a group and its lowest or sending rank.

    Raises:
        ValueError: there is no group of this number.
    """
    return GroupKind(group >> _KIND_BITS), group & _RANK_MASK


def kind_of(line: int) -> GroupKind:
    """The kind of group that a line of a table counts.

    Raises:
        ValueError: there is no such line.
    """
    return GroupKind(line >> 1)


def members(grid: Grid, group: int) -> tuple[int, ...]:
    """The ranks of a group; of messages, the sender and then the receiver.

    Raises:
        ValueError: there is no such group. ConfigError: its rank is outside the grid.
    """
    kind, number = parts_of(group)
    for axis, of_axis in AXIS_KINDS.items():
        if kind is of_axis:
            return grid.group(axis, number)
    if kind is GroupKind.EVERY_RANK:
        return tuple(range(grid.world_size))
    if kind is GroupKind.STAGE:
        return tuple(range(number, number + grid.tp * grid.dp))
    stages = grid.group("pp", number)
    steps = _steps(grid)
    if kind in steps:
        return number, stages[(stages.index(number) + steps[kind]) % grid.pp]
    return number, stages[-1 if _BETWEEN_ENDS[kind] == "first" else 0]


def memberships(grid: Grid, rank: int, *, joins_ends: bool = False) -> tuple[Membership, ...]:
    """The groups of more than one rank that ``rank`` belongs to.

    ``joins_ends``: the first and the last stage exchange the table of a tied model.
    """
    found = [
        Membership(AXIS_KINDS[axis], grid.group(axis, rank)[0], grid.degree(axis)) for axis in AXES
    ]
    in_stage = grid.tp * grid.dp
    found.append(Membership(GroupKind.EVERY_RANK, 0, grid.world_size))
    found.append(Membership(GroupKind.STAGE, rank - rank % in_stage, in_stage))
    found = [one for one in found if one.size > 1]
    if grid.pp > 1:
        found += _messages(grid, rank, joins_ends=joins_ends)
    return tuple(found)


def _messages(grid: Grid, rank: int, *, joins_ends: bool) -> Iterator[Membership]:
    stages = grid.group("pp", rank)
    place, last = stages.index(rank), grid.pp - 1
    steps = _steps(grid)
    for kind, step in steps.items():
        if 0 <= place + step <= last:
            yield Membership(kind, rank, 2)
        if 0 <= place - step <= last:
            yield Membership(kind, stages[place - step], 2, is_receiver=True)
    for kind, sender in _BETWEEN_ENDS.items():
        is_wrap = kind not in steps and grid.vp > 1
        is_used = joins_ends if kind >= GroupKind.TIED_TABLE else is_wrap
        sends, receives = (0, last) if sender == "first" else (last, 0)
        if is_used and place == sends:
            yield Membership(kind, rank, 2)
        if is_used and place == receives:
            yield Membership(kind, stages[sends], 2, is_receiver=True)


def _steps(grid: Grid) -> dict[GroupKind, int]:
    return _V_STEPS if grid.is_v else _STEPS
