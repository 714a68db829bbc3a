"""Which dumps of a folder are of one job at one time, where several dumps have the same rank."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from headway.health.dumps.recorder import Dump

_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class DumpSet:
    """Dumps of different ranks, and the folder or the pattern of names that only they have."""

    where: tuple[str, ...]
    dumps: Mapping[str, Dump]
    """By the file's name in the folder."""

    @property
    def weight(self) -> tuple[int, int]:
        """The set with most ranks is judged, of several the newest."""
        return len(self.dumps), max(dump.newest_ns for dump in self.dumps.values())

    @property
    def reason(self) -> str:
        """Why files of other sets are left out."""
        chosen = ", ".join(self.where[:2]) or next(iter(self.dumps), "")
        return f"from another job or time than {chosen}; diagnose it separately"

    def contains(self, name: str) -> bool:
        """Whether a file lies in a folder that only this set has."""
        return any(PurePath(name).is_relative_to(folder) for folder in self.where)


def dump_sets(dumps: Mapping[str, Dump]) -> list[DumpSet]:
    """Split dumps where one folder has a rank twice; the set to judge is the first.

    Folders are split from the top, so that what a job's folder contains below stays together, and
    so do folders such as ``host0`` and ``host1``; files of one folder are split by their names
    without numbers.
    """
    return sorted(_split("", dumps), key=lambda found: found.weight, reverse=True)


def _split(where: str, dumps: Mapping[str, Dump]) -> list[DumpSet]:
    if _is_one(dumps):
        return [DumpSet((where,) if where else (), dumps)] if dumps else []
    folders: dict[str, dict[str, dict[str, Dump]]] = defaultdict(lambda: defaultdict(dict))
    files: dict[str, dict[str, Dump]] = defaultdict(dict)
    for name, dump in dumps.items():
        first, *rest = PurePath(name).relative_to(where).parts
        pattern = _DIGITS.sub("#", first)
        if rest:
            folders[pattern][str(PurePath(where, first))][name] = dump
        else:
            files[pattern][name] = dump
    found = [DumpSet((), _newest(inside)) for inside in files.values()]
    for alike in folders.values():
        together = {name: dump for inside in alike.values() for name, dump in inside.items()}
        if _is_one(together):
            found.append(DumpSet(tuple(alike), together))
        else:
            found += [part for folder, inside in alike.items() for part in _split(folder, inside)]
    return found


def _is_one(dumps: Mapping[str, Dump]) -> bool:
    return len({dump.rank for dump in dumps.values()}) == len(dumps)


def _newest(dumps: Mapping[str, Dump]) -> dict[str, Dump]:
    """One of each rank."""
    of_rank: dict[int, str] = {}
    for name, dump in dumps.items():
        known = of_rank.get(dump.rank)
        if known is None or dumps[known].newest_ns < dump.newest_ns:
            of_rank[dump.rank] = name
    return {name: dumps[name] for name in of_rank.values()}
