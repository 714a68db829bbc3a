"""Who has entered a collective and who has not, from the group tables of all ranks in a hang."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from headway.common.plan.collectives import GroupKind, Op, kind_of
from headway.common.wire.messages.health import Evidence, GroupRow
from headway.health.detectors.episodes import fact
from headway.health.detectors.silence import RankView

MAX_ROWS = 6
"""Groups shown in one verdict; a hang stops most groups of a run sooner or later."""
MAX_RANKS = 8


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A collective that some members of a group have entered, and that is not done on them."""

    kind: GroupKind
    number: int
    """The group's lowest rank."""
    sequence: int
    """Which collective of the group it is, from 1 on in each generation."""
    op: int
    entered: tuple[int, ...]
    """The members that wait in it."""
    missing: tuple[int, ...]
    """The members that have not entered it."""
    age_ms: int
    """Since the first of them entered it."""

    def __str__(self) -> str:
        name = self.kind.name.lower().replace("_", " ")
        what = Op(self.op).name.lower() if self.op in Op.__members__.values() else f"op {self.op}"
        lacks = f"not by {_ranks(self.missing)}" if self.missing else "by all"
        return (
            f"{what} {self.sequence} of the {name} group of rank {self.number}: entered by "
            f"{_ranks(self.entered)} {self.age_ms / 1000:.1f} s ago, {lacks}"
        )


def unfinished(views: Collection[RankView]) -> list[Unfinished]:
    """The newest collective of each group that is not done.

    Those that some member has not entered come first, the longest open before the others.
    """
    groups: dict[tuple[int, int], dict[int, GroupRow]] = {}
    for view in views:
        for row in view.signals.groups:
            if 2 * GroupKind.TP <= row.line < 2 * GroupKind.FORWARD:
                groups.setdefault((row.line, row.number), {})[view.signals.rank] = row
    found = list(_unfinished(groups))
    return sorted(found, key=lambda one: (not one.missing, -one.age_ms))


def _unfinished(groups: dict[tuple[int, int], dict[int, GroupRow]]) -> Iterator[Unfinished]:
    for (line, number), rows in groups.items():
        newest = max(row.entered for row in rows.values())
        inside = {
            rank: row for rank, row in rows.items() if row.entered == newest and row.done < newest
        }
        if not inside:
            continue
        missing = tuple(sorted(rank for rank, row in rows.items() if row.entered < newest))
        ops = {row.op for row in inside.values()}
        age_ms = max(row.entered_ago_ms for row in inside.values())
        yield Unfinished(
            kind_of(line), number, newest, min(ops), tuple(sorted(inside)), missing, age_ms
        )


def evidence_of_groups(views: Collection[RankView]) -> tuple[Evidence, ...]:
    """For a verdict: where collectives stand, those first that some member has not entered."""
    return tuple(fact("flight", "collective", str(one)) for one in unfinished(views)[:MAX_ROWS])


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:MAX_RANKS]))
    more = f" and {len(ranks) - MAX_RANKS} more" if len(ranks) > MAX_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
