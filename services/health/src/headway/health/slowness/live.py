"""Which ranks of a run stay slow, while it trains: what the monitor names, and when it is over.

The newest steps are judged by the same rule as stored ones. Of what that finds, only that is named
which stays with a rank, a tensor-parallel group or a stage, and is so large, so long and so far
above short slowdowns that chance is ruled out. It is over once the rule finds its end, or has
not found it for some steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from headway.common.plan.grid import Grid
from headway.common.wire.messages.summaries import StepSummary
from headway.health.config import HealthConfig
from headway.health.slowness.findings import Slowness
from headway.health.slowness.judge import slowness_of
from headway.health.slowness.newest import KEPT_STEPS, NewestSteps
from headway.health.slowness.passing import OLDEST, PassingExcess
from headway.health.slowness.steps import StepTable

Who = tuple[int, ...]
"""Lowest and highest rank of what is slow; of a tensor-parallel group always its first rank."""
LIVE_STEPS: Final = 16
"""Fewer of a generation are not judged."""
LEAST_S: Final = 2.0
"""It lasts at least so long: what a busy machine does to short steps lasts less."""
NEAR: Final = 24
"""Steps from when another stage is as fast as usual again until that is found, and as many after:
what begins so near to it is its other side."""
MISSED_STEPS: Final = 8
"""What is named is over once the rule has not found it for so long: of few steps, noise may hide it
for some."""


@dataclass(frozen=True, slots=True)
class Named:
    """What is slow for certain."""

    who: Who
    one: Slowness
    began_s: float | None
    """When its first slow step was reported, by the clock of ``add``; None if that is unknown."""


@dataclass(frozen=True, slots=True)
class LiveJudgement:
    """What the newest steps show."""

    generation: int
    table: StepTable
    named: tuple[Named, ...]
    doubted: frozenset[Who]
    """What is slow as well, but not for certain."""


class LiveSlowness:
    """Takes in summaries and judges them. To be used by one thread at a time."""

    def __init__(self, grid: Grid | None, config: HealthConfig) -> None:
        self._config = config
        self._newest = NewestSteps(grid)
        self._passing = PassingExcess()
        self._lasts: dict[Who, tuple[Slowness, int]] = {}
        """What lasts, with the step at which the rule has found it last."""
        self._over: list[tuple[int, Slowness]] = []
        """What has ended lately, with the step: its own steps are no short slowdown."""
        self._named: dict[Who, Named] = {}
        self._ends: dict[Who, int] = {}
        """Step at which what was named turned out to be over."""
        self._changing: dict[Who, int] = {}
        """Step since which the cause of what is named seems to be another one."""
        self._missing: dict[Who, int] = {}
        """Step since which what is named is not found any more."""
        self._generation = self._judged_step = -1

    def add(self, arrived: Sequence[tuple[StepSummary, float]]) -> None:
        """Take in summaries, each with the time at which it arrived, on one clock."""
        self._newest.add(arrived)
        if self._newest.generation != self._generation:
            self._generation, self._judged_step = self._newest.generation, -1
            self._lasts.clear()
            self._over.clear()
            self._named.clear()
            self._ends.clear()
            self._changing.clear()
            self._missing.clear()
            self._passing.begin()

    def judge(self, now_s: float) -> LiveJudgement | None:
        """What the steps that are known show; None if none is new, or too few are known."""
        if self._newest.newest_step == self._judged_step:
            return None
        table = self._newest.table()
        if len(table.steps) < LIVE_STEPS:
            return None
        self._judged_step = self._newest.newest_step
        found = slowness_of(table)
        lasting = self._lasting(found, table)
        kept = self._missed(found, table)
        slow = {who: named.one for who, named in kept.items()} | lasting
        self._note_passed(slow, table)
        lasts, over = (one for one, _ in self._lasts.values()), (one for _, one in self._over)
        self._passing.note(table, [*lasts, *over])
        named = kept | {
            who: self._named_as(who, one)
            for who, one in lasting.items()
            if who in self._named
            or (self._is_certain(one, table, now_s) and not self._is_end_of_other(who, one, table))
        }
        ended = self._named.keys() - named.keys()
        self._ends |= dict.fromkeys(ended, self._judged_step)
        self._named = named
        self._keep_what_was_before()
        return LiveJudgement(
            self._generation, table, tuple(self._named.values()),
            frozenset(lasting.keys() - self._named.keys()),
        )  # fmt: skip

    def _lasting(self, found: list[Slowness], table: StepTable) -> dict[Who, Slowness]:
        """What has not ended some steps ago, the worst of each."""
        lasting: dict[Who, Slowness] = {}
        for one in found:
            ended_for = 0 if one.until is None else int((table.steps > one.until).sum())
            # of a single rank nothing shows how long it usually waits
            is_compared = table.grid.world_size > 1 or one.cause == "compute"
            if not one.ranks or not is_compared:
                continue
            if ended_for < self._config.slow_steps:
                lasting.setdefault(_who(one, table), one)
        return lasting

    def _missed(self, found: list[Slowness], table: StepTable) -> dict[Who, Named]:
        """What is named and has not been found for some steps only, as it was known before.

        What has ended is found, with its end. Found at less than half of what it was, it counts as
        missed.
        """
        seen = {_who(one, table): one.excess for one in reversed(found) if one.ranks}
        missing = {
            who: self._missing.get(who, self._judged_step)
            for who, named in self._named.items()
            if seen.get(who, 0.0) < named.one.excess / 2
        }
        self._missing = missing
        return {
            who: self._named[who]
            for who, first in missing.items()
            if who not in seen and self._judged_step - first < MISSED_STEPS
        }

    def _note_passed(self, lasting: dict[Who, Slowness], table: StepTable) -> None:
        """What has lasted less long than the table reaches back was not a lasting fault.

        What the rule misses for a few steps still lasts.
        """
        now = int(table.steps[-1])
        self._over = [(step, one) for step, one in self._over if now - step < OLDEST]
        self._lasts |= {who: (one, now) for who, one in lasting.items()}
        for who, (one, found_at) in list(self._lasts.items()):
            if now - found_at < MISSED_STEPS:
                continue
            del self._lasts[who]
            self._over.append((now, one))
            if one.since is not None and found_at - one.since < KEPT_STEPS:
                self._passing.passed(one, table.grid)

    def _is_certain(self, one: Slowness, table: StepTable, now_s: float) -> bool:
        began = table.steps[0] if one.since is None else one.since
        began_s = self._newest.seen_s(int(began))
        return (
            one.excess >= self._least_excess(one, table)
            and (one.until is None or one.until >= table.steps[-2])
            and int((table.steps >= began).sum()) >= self._config.slow_steps
            and (began_s is None or now_s - began_s >= LEAST_S)
        )

    def _is_end_of_other(self, who: Who, one: Slowness, table: StepTable) -> bool:
        """Whether a stage without replicas seems slow since another one is as fast as usual again.

        The times of two stages show only that one has become slower against the other.
        """
        if table.grid.dp > 1 or one.since is None:
            return False
        ends = [end for other, end in self._ends.items() if other != who]
        return any(abs(one.since - end) <= NEAR for end in ends)

    def _least_excess(self, one: Slowness, table: StepTable) -> float:
        passes = table.times["own_us"][:, list(one.ranks)]
        passes_s = float(np.nanmedian(passes)) / 1e6 if not np.isnan(passes).all() else 0.0
        steps = table.steps if one.since is None else table.steps[table.steps >= one.since]
        return max(
            self._config.slow_factor - 1,
            self._config.slow_floor_s / max(passes_s, 1e-6),
            self._passing.above(one, table.grid, len(steps)),
        )

    def _named_as(self, who: Who, one: Slowness) -> Named:
        """Name a slowness as it is found now; another cause counts once it has lasted as well."""
        known = self._named.get(who)
        if known is None:
            return Named(who, one, None if one.since is None else self._newest.seen_s(one.since))
        if one.cause != known.one.cause:
            began = self._changing.setdefault(who, self._judged_step)
            if self._judged_step - began < self._config.slow_steps:
                return known
        self._changing.pop(who, None)
        # the first slow step may not be in the table any more
        return Named(who, replace(one, since=known.one.since), known.began_s)

    def _keep_what_was_before(self) -> None:
        """What is slow is held against the steps before it, however long it lasts."""
        since = [named.one.since for named in self._named.values() if named.one.since is not None]
        if since:
            self._newest.hold(min(since))
        elif not self._named:
            self._newest.release()


def _who(one: Slowness, table: StepTable) -> Who:
    tp = table.grid.tp
    first, last = min(one.ranks), max(one.ranks)
    return (first // tp * tp,) if first // tp == last // tp else (first, last)
