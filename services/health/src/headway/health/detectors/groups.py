"""Finds which ranks have and have not entered a collective, from all group tables in a hang."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headway.common.plan.collectives import GroupKind, Op, kind_of
from headway.common.wire.group_table import GroupRow, unpack
from headway.common.wire.messages.health import Evidence
from headway.health.detectors.episodes import fact
from headway.health.detectors.rank_view import RankView
from headway.health.diagnosis.diagnosis import ranks_in_words

MAX_ROWS = 6
"""Groups shown in one verdict; a hang stops most groups of a run sooner or later."""
NUM_KINDS = max(GroupKind) + 1


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The oldest collective of a group that some member has entered and none can finish."""

    kind: GroupKind
    number: int
    """The group's lowest rank; of messages, the rank that sends them."""
    sequence: int
    """Which collective of the group it is, from 1 on in each generation."""
    entered: tuple[int, ...]
    """The members that have entered it."""
    missing: tuple[int, ...]
    """The members that have not."""
    num_unknown: int
    """Members that have not reported."""
    age_ms: int
    """Since a member entered its newest one."""
    ops: str
    """What the members do that entered it last: different words if these differ."""

    def __str__(self) -> str:
        name = self.kind.name.lower().replace("_", " ")
        rest = [f"not by {ranks_in_words(self.missing)}"] if self.missing else []
        rest += [f"unknown of {self.num_unknown} more"] if self.num_unknown else []
        lacks = ", ".join(rest) or "by all"
        who = ranks_in_words(self.entered) if self.entered else "nobody known"
        return (
            f"{self.ops} {self.sequence} of the {name} group of rank {self.number}: entered by "
            f"{who} {self.age_ms / 1000:.1f} s ago, {lacks}"
        )


def unfinished(views: Collection[RankView]) -> list[Unfinished]:
    """The collective that each group is held up by, of the groups in which somebody waits.

    Members may be several collectives apart, so what holds a group up is what the last of them has
    yet to enter, or else to finish. Groups that some member has yet to enter come first, the
    longest open before the others.
    """
    groups: dict[tuple[int, int], dict[int, GroupRow]] = {}
    for view in views:
        for row in unpack(view.signals.packed_groups):
            if 2 * GroupKind.TP <= row.line < 2 * NUM_KINDS:
                # both ends of messages are one group
                line = row.line if row.line < 2 * GroupKind.FORWARD else row.line & ~1
                groups.setdefault((line, row.number), {})[view.signals.rank] = row
    found = [one for key, rows in groups.items() if (one := _held_up(*key, rows)) is not None]
    return sorted(found, key=lambda one: (not one.missing, not one.num_unknown, -one.age_ms))


def _held_up(line: int, number: int, rows: dict[int, GroupRow]) -> Unfinished | None:
    size = max(row.size for row in rows.values())
    last, first = (
        min(row.entered for row in rows.values()),
        max(row.entered for row in rows.values()),
    )
    if line >= 2 * GroupKind.FORWARD and not _awaits_message(rows):
        return None
    sequence = last + 1 if first > last else min(row.done for row in rows.values()) + 1
    entered = {rank: row for rank, row in rows.items() if row.entered >= sequence}
    if not any(row.done < sequence for row in entered.values()):
        return None
    newest = [row for row in entered.values() if row.entered == sequence] or [*entered.values()]
    return Unfinished(
        kind_of(line),
        number,
        sequence,
        tuple(sorted(entered)),
        tuple(sorted(set(rows) - set(entered))),
        max(0, size - len(rows)),
        max(row.entered_ago_ms for row in entered.values()),
        " or ".join(sorted({_what(row, newest) for row in newest})),
    )


def _awaits_message(rows: dict[int, GroupRow]) -> bool:
    """Whether a receiver waits for what its sender has not sent: one posted ahead is not a wait."""
    received = [row for row in rows.values() if row.line & 1]
    sent = [row for row in rows.values() if not row.line & 1]
    return bool(received and sent) and received[0].done == sent[0].entered < received[0].entered


def _what(row: GroupRow, others: Collection[GroupRow]) -> str:
    """The operation, and its size if that differs between members."""
    name = Op(row.op).name.lower() if row.op in Op.__members__.values() else f"op {row.op}"
    if row.line >= 2 * GroupKind.FORWARD:
        return "message"
    return name if len({one.nbytes for one in others}) == 1 else f"{name} of {row.nbytes} bytes"


def evidence_of_groups(views: Collection[RankView]) -> tuple[Evidence, ...]:
    """For a verdict: where collectives stand, those first that some member has not entered."""
    return tuple(fact("flight", "collective", str(one)) for one in unfinished(views)[:MAX_ROWS])
