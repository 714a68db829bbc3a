"""What slows the newest steps of a run, from the summaries that its monitor has saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.common.plan.grid import Grid
from headway.common.wire.messages.health import Verdict
from headway.health.diagnosis.diagnosis import Diagnosis
from headway.health.slowness.judge import judge_steps
from headway.health.slowness.notes import notes_of
from headway.health.slowness.reading import read_rows
from headway.health.slowness.steps import most_ranks, table_of


@dataclass(frozen=True, slots=True)
class SlowSteps:
    """What was found, and in which files."""

    found: tuple[Diagnosis, ...]
    read: dict[str, str]
    """File -> what it is."""
    unread: dict[str, str]
    """File -> why it was not read."""


def slow_steps(folder: Path, grid: Grid | None, verdicts: Sequence[Verdict]) -> SlowSteps:
    """Judge the newest summaries in a folder; nothing is found if there is none.

    Args:
        grid: which ranks do the same work; without it each is held against its own earlier time.
        verdicts: findings about machines among them may say why a rank is slow.
    """
    rows, read, unread = read_rows(folder, most_ranks(grid))
    found = judge_steps(table_of(rows, grid), notes_of(verdicts))
    return SlowSteps(tuple(found), read, unread)


def is_known(one: Diagnosis, held: Sequence[Diagnosis]) -> bool:
    """Whether the monitor already holds against the same ranks that they are slow."""
    ranks = {subject.rank for subject in one.culprits}
    return any(
        other.kind == "slow" and bool(ranks & {subject.rank for subject in other.culprits})
        for other in held
    )
