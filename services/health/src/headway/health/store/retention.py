"""Which saved files are removed to keep a node's records within a limit of disk space.

The oldest go first. Those around an incident, from 60 s before it began until 60 s after it ended,
are kept beyond the limit, up to three times as much again: they are what somebody will look at.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.common.log import get_logger
from headway.common.wire.messages.health import Verdict
from headway.health.journal import read_verdicts

AROUND_S = 60.0
MOST_TIMES = 4
"""Files around incidents included, the limit is not exceeded by more."""
REACH_S = 300.0
"""How far back the records of a file may go at most: a minute, and what was open before it."""

_log = get_logger("windows")

Incident = tuple[float, float]
"""Begin and end, wall time in seconds."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A file, and the wall time that its records may be of."""

    path: Path
    size: int
    begin_s: float
    end_s: float


def incidents_of(verdicts: Iterable[Verdict], now_s: float) -> list[Incident]:
    """When something was wrong, each widened by ``AROUND_S``; an open verdict lasts until now."""
    found: dict[str, Incident] = {}
    for one in verdicts:
        begin_s, _ = found.get(one.id, (one.unix_s, one.unix_s))
        begin_s = min(begin_s, one.unix_s - one.silence_s)
        found[one.id] = (begin_s, now_s if one.is_open else one.unix_s)
    return [(begin_s - AROUND_S, end_s + AROUND_S) for begin_s, end_s in found.values()]


def surplus(files: Sequence[Saved], incidents: Sequence[Incident], limit: int) -> list[Saved]:
    """What to remove of ``files``, which are in order of age, so that ``limit`` bytes remain.

    The newest file always stays.
    """
    pinned = {one.path for one in files if _is_near(one, incidents)}
    usual = [one for one in files if one.path not in pinned]
    removed = _oldest(usual, limit)
    kept = [one for one in files if one not in removed]
    first = [one for one in kept if one.path in pinned]
    excess = sum(one.size for one in kept) - MOST_TIMES * limit
    removed += _oldest(first, sum(one.size for one in first) - excess) if excess > 0 else []
    return [one for one in removed if one is not files[-1]]


def _oldest(files: Sequence[Saved], limit: int) -> list[Saved]:
    """The files beyond ``limit`` bytes, counted from the newest one."""
    total = sum(one.size for one in files)
    removed = []
    for one in files:
        if total <= limit:
            break
        removed.append(one)
        total -= one.size
    return removed


def _is_near(file: Saved, incidents: Sequence[Incident]) -> bool:
    return any(begin_s <= file.end_s and end_s >= file.begin_s for begin_s, end_s in incidents)


def keep_to(limit: int, paths: Iterable[Path], verdicts: Path | None) -> int:
    """Remove what is beyond ``limit`` bytes; returns how many files that were.

    Args:
        verdicts: the run's ``verdicts.jsonl``; without it no file is kept beyond the limit.
    """
    files = _by_age(paths)
    if sum(one.size for one in files) <= limit:
        return 0
    incidents = incidents_of(read_verdicts(verdicts), time.time()) if verdicts is not None else []
    removed = surplus(files, incidents, limit)
    for one in removed:
        one.path.unlink(missing_ok=True)
    if removed:
        freed = sum(one.size for one in removed)
        _log.info("old flight records are removed", files=len(removed), freed_bytes=freed)
    return len(removed)


def _by_age(paths: Iterable[Path]) -> list[Saved]:
    stats = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            stats.append((path.stat(), path))
    stats.sort(key=lambda one: (one[0].st_mtime_ns, one[1]))
    found: list[Saved] = []
    for stat, path in stats:
        begin_s = stat.st_mtime - REACH_S
        if found:
            begin_s = max(begin_s, found[-1].end_s)
        found.append(Saved(path, stat.st_size, begin_s, stat.st_mtime))
    return found
