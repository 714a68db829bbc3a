"""Interleaved rounds: the fastest variant of each side is chosen, then the sides take turns.

Each round gives every side one turn, in the opposite order of the round before, so a drift of the
machine affects all sides alike. Ratios are taken within a round.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.train.sides import SideFailed, Spec, Team

TUNING_TURNS = 2


@dataclass(frozen=True)
class Plan:
    """How long to measure. ``steps`` are those of one turn."""

    rounds: int = 7
    steps: int = 2
    warmup: int = 2
    tuning: int = TUNING_TURNS


def compare(
    groups: Mapping[str, Sequence[Spec]], plan: Plan, *, ours: str = "headway"
) -> dict[str, Any]:
    """One row of results: every side's times, and per-round ratios of ``ours`` to each other side.

    A ratio above 1 means that ``ours`` is faster. Variants that fail are listed with their errors,
    and a side of which all fail is left out.
    """
    failed: dict[str, str] = {}
    chosen: dict[str, Team] = {}
    sides: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        for group, specs in groups.items():
            best = _choose(specs, plan, failed)
            if best is not None:
                chosen[group], sides[group] = best
                stack.callback(best[0].close)
                _say(f"  {group}: {best[0].spec.name}, {best[1]['tuning']}")
        times: dict[str, list[float]] = {group: [] for group in chosen}
        cpu: dict[str, list[float]] = {group: [] for group in chosen}
        for index in range(plan.rounds):
            order = list(chosen) if index % 2 == 0 else list(reversed(chosen))
            for group in order:
                try:
                    turn = chosen[group].turn(plan.steps)
                except SideFailed as error:
                    failed[chosen[group].spec.name] = str(error)
                    continue
                times[group].append(turn.step_s)
                cpu[group].append(turn.cpu_s / turn.steps)
                sides[group]["peak_kib"] = turn.peak_kib
    for group, seconds in times.items():
        shape = chosen[group].spec.shape
        tokens = int(shape.get("batch", 0) * shape.get("seq", 0))
        sides[group] |= summary(seconds, tokens) | {"cpu_s": [round(s, 4) for s in cpu[group]]}
    return {"sides": sides, "ratios": ratios(times, ours), "failed": failed}


def _choose(
    specs: Sequence[Spec], plan: Plan, failed: dict[str, str]
) -> tuple[Team, dict[str, Any]] | None:
    """The fastest variant, still running, and what is known of it; the others are closed."""
    teams: dict[str, Team] = {}
    first_s: dict[str, float] = {}
    times: dict[str, list[float]] = {}
    for spec in specs:
        try:
            teams[spec.name] = Team(spec)
            first_s[spec.name] = teams[spec.name].turn(1).seconds
            for _ in range(plan.warmup - 1):
                teams[spec.name].turn(1)
            times[spec.name] = []
        except SideFailed as error:
            failed[spec.name] = str(error)
            _say(f"  {spec.name} failed: {error}")
            if spec.name in teams:
                teams.pop(spec.name).close()
    for _ in range(plan.tuning if len(teams) > 1 else 0):
        for name, member in teams.items():
            times[name].append(member.turn(1).step_s)
    if not teams:
        return None
    winner = min(teams, key=lambda name: min(times[name], default=0.0))
    for name, member in teams.items():
        if name != winner:
            member.close()
    tuning = {name: round(min(found), 4) for name, found in times.items() if found}
    return teams[winner], {
        "variant": winner,
        "options": {k: v for k, v in teams[winner].spec.options.items() if k != "weights"},
        "first_step_s": {name: round(seconds, 2) for name, seconds in first_s.items()},
        "tuning": tuning,
        "resident_before_kib": teams[winner].resident_kib,
    }


def summary(seconds: Sequence[float], tokens: int = 0) -> dict[str, Any]:
    """Median, best, and spread: (highest - lowest) / median."""
    if not seconds:
        return {"rounds": 0}
    median = statistics.median(seconds)
    found: dict[str, Any] = {
        "step_s": [round(value, 5) for value in seconds],
        "median_s": round(median, 5),
        "best_s": round(min(seconds), 5),
        "spread": round((max(seconds) - min(seconds)) / median, 3),
    }
    if tokens:
        found["tokens_per_s"] = round(tokens / median, 1)
    return found


def ratios(times: Mapping[str, Sequence[float]], ours: str) -> dict[str, Any]:
    """Other side -> its time over that of ``ours`` in each round, and the median of those."""
    found: dict[str, Any] = {}
    for group, seconds in times.items():
        if group == ours or not times.get(ours):
            continue
        values = [theirs / mine for theirs, mine in zip(seconds, times[ours], strict=False)]
        if values:
            found[group] = {
                "rounds": [round(value, 3) for value in values],
                "median": round(statistics.median(values), 3),
            }
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
