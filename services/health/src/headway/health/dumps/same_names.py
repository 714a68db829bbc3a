"""Groups of one name on different ranks.

Ranks number the groups that they create. Where each creates only those that it belongs to, as torch
does with ``use_local_synchronization``, ranks 0 and 1 have a group of the name that ranks 2 and 3
have given to theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

from headway.health.diagnosis.positions import Group
from headway.health.dumps.recorder import Dump

Members = tuple[int, ...]
OF_RANK = " of rank "


def apart(dumps: Collection[Dump]) -> list[Dump]:
    """The dumps with a name of its own for each of these groups."""
    known: dict[str, set[Members]] = defaultdict(set)
    for dump in dumps:
        for name, ranks in dump.members.items():
            if dump.rank in ranks:
                known[name].add(ranks)
    shared = {name for name, found in known.items() if len(found) > 1 and _are_disjoint(found)}
    return [_renamed(dump, shared) for dump in dumps] if shared else list(dumps)


def own_name(name: str, rank: int, groups: Mapping[str, Group]) -> str:
    """What a rank's group of a name is called among these."""
    return next(
        (
            group.name
            for group in groups.values()
            if group.name.startswith(name + OF_RANK) and rank in group.members
        ),
        name,
    )


def _are_disjoint(groups: Collection[Members]) -> bool:
    """Else a group has several forms, as one whose members a recorder wrote in part."""
    return len(frozenset().union(*groups)) == sum(map(len, groups))


def _renamed(dump: Dump, shared: Collection[str]) -> Dump:
    new = {
        name: f"{name}{OF_RANK}{min(ranks)}" if name in shared and dump.rank in ranks else name
        for name, ranks in dump.members.items()
    }
    entries = tuple(replace(one, group=new.get(one.group, one.group)) for one in dump.entries)
    members = {new[name]: ranks for name, ranks in dump.members.items()}
    return replace(dump, entries=entries, members=members)
