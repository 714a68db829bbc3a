"""Detects ranks that compute slower than others which do the same work.

In synchronous training one slow rank slows all, and every other one shows it as waiting; so only
the time of forward and backward passes is compared, which waits for no other stage or replica. A
rank is held against the other replicas of its pipeline stage. Without replicas, or if they are slow
as well, it is held against its own earlier time, less what all ranks have slowed down by together,
such as by longer sequences or a busy machine. Tensor-parallel ranks wait for each other inside
their passes: they are judged as one. Nothing is done about a slow rank but to say it, and that it
is over.
"""

from __future__ import annotations

import bisect
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from headway.common.plan.grid import Grid
from headway.common.wire.messages.health import Evidence, Verdict, WorkerSignals
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import Episodes, Key, fact
from headway.health.detectors.rank_view import RankView
from headway.health.detectors.slow_causes import SlowCause, SlowCauses
from headway.health.policy import ADVICE, Advice
from headway.health.sources.flight import COMPUTE_STEPS

LOOK_S: Final = 1.0
"""How often the times are compared: 12,288 ranks take 10 to 150 ms."""
LEAST_EARLIER: Final = 3
"""Own earlier times that are needed before a rank is held against them."""
KEPT_EARLIER: Final = 16
ALONE_FACTOR: Final = 1.5
"""How much larger the factor is for a run of one unit, whose machine may just be busy."""


@dataclass(slots=True)
class _Unit:
    """The ranks that are judged as one, in one generation."""

    ranks: tuple[int, ...]
    node: int
    generation: int
    step: int = -1
    compute_s: float = 0.0
    earlier_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_EARLIER))
    """Its time while it was not slow, about once per ``COMPUTE_STEPS``."""
    others_s: float = 0.0
    """Median over the other stages, 0 without any."""
    earlier_share: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_EARLIER))
    """Its time then in that of the other stages: the same on a busy machine."""
    noted_step: int = -1
    is_slow: bool = False
    is_off: bool = False
    """It is named, or takes too long for its work, however short that is."""
    cause: SlowCause | None = None
    """While it is named."""
    changing_since: int | None = None
    """Step since which it is slow without being named, or well although it is named."""

    @property
    def slowdown(self) -> float | None:
        """Against its own earlier time, None while that is not known."""
        if len(self.earlier_s) < LEAST_EARLIER:
            return None
        return self.compute_s / statistics.median(self.earlier_s)

    def note_earlier(self, *, are_others_usual: bool) -> None:
        """Record its present time as one that is usual for it.

        Its share in the time of the others is recorded as well, if theirs is usual, too.
        """
        if self.step - self.noted_step >= COMPUTE_STEPS:
            self.earlier_s.append(self.compute_s)
            if self.others_s and are_others_usual:
                self.earlier_share.append(self.compute_s / self.others_s)
            self.noted_step = self.step


class SlowRanks:
    """``grid`` says which ranks do the same work; without it none is known to."""

    def __init__(
        self, episodes: Episodes, config: HealthConfig, grid: Grid | None, causes: SlowCauses
    ) -> None:
        self._episodes, self._config, self._grid = episodes, config, grid
        self._causes = causes
        self._units: dict[int, _Unit] = {}
        """By lowest rank."""
        self._looked_s = float("-inf")

    def judge(self, views: Iterable[RankView], generation: int, clock_s: float) -> list[Verdict]:
        """New verdicts, and the closing ones of what is over; to be called with every tick."""
        if clock_s - self._looked_s < LOOK_S:
            return []
        self._looked_s = clock_s
        moved = self._read([view for view in views if view.signals.generation == generation])
        verdicts = self._close_older(generation)
        stages: dict[int, list[float]] = {}
        for unit in self._units.values():
            stages.setdefault(self._stage(unit), []).append(unit.compute_s)
        for times in stages.values():
            times.sort()
        # once per stage, not per unit: each takes the time of all its replicas
        median_of = {stage: statistics.median(times) for stage, times in stages.items()}
        medians = sorted(median_of.values())
        slowdowns = sorted(s for unit in self._units.values() if (s := unit.slowdown) is not None)
        for unit in moved:
            stage = self._stage(unit)
            peers_s = _median_without(stages[stage], unit.compute_s)
            unit.others_s = _median_without(medians, median_of[stage]) or 0.0
            verdicts += self._weigh(unit, peers_s, slowdowns) or self._explain(unit)
        unusual = self._unusual(stages)
        for unit in moved:
            if not unit.is_slow:
                unit.note_earlier(are_others_usual=unusual <= {self._stage(unit)})
        return verdicts

    def _read(self, views: Sequence[RankView]) -> list[_Unit]:
        """Take in the newest times; returns the units that have made a step and can be judged."""
        tp = self._grid.tp if self._grid is not None else 1
        found: dict[int, list[RankView]] = {}
        for view in views:
            found.setdefault(view.signals.rank // tp * tp, []).append(view)
        self._units = {number: one for number, one in self._units.items() if number in found}
        moved = []
        for number, members in found.items():
            if len(members) < tp or not all(_is_settled(one.signals) for one in members):
                continue
            first = members[0]
            unit = self._units.get(number)
            if unit is None or unit.generation != first.signals.generation:
                ranks = tuple(sorted(one.signals.rank for one in members))
                unit = _Unit(ranks, first.node, first.signals.generation)
                self._units[number] = unit
            unit.node, step = first.node, min(one.signals.step for one in members)
            if step > unit.step:
                unit.step = step
                unit.compute_s = max(one.signals.compute_s for one in members)
                moved.append(unit)
        return moved

    def _stage(self, unit: _Unit) -> int:
        """Units of the same number do the same work."""
        if self._grid is None:
            return unit.ranks[0]
        return unit.ranks[0] // (self._grid.tp * self._grid.dp)

    def _unusual(self, stages: Mapping[int, Sequence[float]]) -> set[int]:
        """The stages of which at least half the units are slow, and so their median."""
        off = Counter(self._stage(unit) for unit in self._units.values() if unit.is_off)
        return {stage for stage, count in off.items() if 2 * count >= len(stages[stage])}

    def _weigh(
        self, unit: _Unit, peers_s: float | None, slowdowns: Sequence[float]
    ) -> list[Verdict]:
        """Compare a unit with what is usual, and return what changes in its verdict.

        ``peers_s`` is the median of its replicas, None without any; ``slowdowns`` are all units'
        against their own earlier time, sorted.
        """
        usual_s, than, factor = self._usual(unit, peers_s, slowdowns)
        ratio = unit.compute_s / usual_s if usual_s else 1.0
        is_named = self._episodes.get(_key(unit)) is not None
        is_above = unit.compute_s - usual_s >= self._config.slow_floor_s
        unit.is_slow, unit.is_off = ratio >= factor and is_above, is_named or ratio >= factor
        is_well = ratio < (1 + factor) / 2
        if not (is_well if is_named else unit.is_slow):
            unit.changing_since = None
            return []
        if unit.changing_since is None:
            unit.changing_since = unit.step
        if unit.step - unit.changing_since < self._config.slow_steps:
            return []
        since, unit.changing_since = max(0, unit.changing_since - COMPUTE_STEPS // 2), None
        return self._end(unit, than) if is_named else self._name(unit, ratio, than, since)

    def _usual(
        self, unit: _Unit, peers_s: float | None, slowdowns: Sequence[float]
    ) -> tuple[float, str, float]:
        """Return what the unit should take, what that is, and how many times as long is slow.

        The time is 0 while it is not known.
        """
        factor, usual_s, than = self._config.slow_factor, peers_s or 0.0, "peers"
        if unit.slowdown is None:
            return usual_s, than, factor
        earlier_s = statistics.median(unit.earlier_s)
        if peers_s is not None:
            # all replicas of a stage may be slow; what slows every stage is nobody's
            if not unit.earlier_share or not unit.others_s:
                return usual_s, than, factor
            earlier_s = max(earlier_s, statistics.median(unit.earlier_share) * unit.others_s)
            are_slow = peers_s >= (1 + factor) / 2 * earlier_s
            return (earlier_s, "earlier time", factor) if are_slow else (usual_s, than, factor)
        # where all became slower together, or the others faster for want of company, it is not
        # this one
        others = _median_without(slowdowns, unit.slowdown)
        factor *= 1.0 if others is not None else ALONE_FACTOR
        return max(1.0, others or 1.0) * earlier_s, "earlier time", factor

    def _name(self, unit: _Unit, ratio: float, than: str, since: int) -> list[Verdict]:
        is_one = len(unit.ranks) == 1
        finding = f"{_who(unit)} {'computes' if is_one else 'compute'} {ratio:.1f}x "
        finding += f"{'its' if is_one else 'their'} {than} since step {since} (node {unit.node})"
        rows = [
            fact("flight", "finding", finding),
            fact("flight", "compute", f"{unit.compute_s:.3f} s per step"),
            fact("flight", "since_step", str(since)),
        ]
        slowest = unit.ranks[0] if is_one else self._causes.slowest(unit.ranks)
        if not is_one and slowest is not None:
            rows.append(fact("flight", "slowest", f"the others wait for rank {slowest}"))
        unit.cause = self._causes.of(unit.node)
        rows += _because(unit.cause)
        return self._episodes.report(
            _key(unit),
            "slow_rank",
            tuple(rows),
            advice=_advice(unit.cause),
            cause=unit.cause.cause,
            node=unit.node,
            rank=-1 if slowest is None else slowest,
            generation=unit.generation,
        )

    def _explain(self, unit: _Unit) -> list[Verdict]:
        """A finding that came after it was named says why it is slow."""
        if unit.cause is None or unit.cause.why or self._episodes.get(_key(unit)) is None:
            return []
        cause = self._causes.of(unit.node)
        if not cause.why:
            return []
        unit.cause = cause
        return self._episodes.advise(
            _key(unit), _advice(cause), *_because(cause), cause=cause.cause
        )

    def _end(self, unit: _Unit, than: str) -> list[Verdict]:
        are = "is" if len(unit.ranks) == 1 else "are"
        as_usual = "as its peers" if than == "peers" else "as before"
        unit.cause = None
        finding = f"{_who(unit)} {are} as fast {as_usual} again (node {unit.node})"
        return self._episodes.close(_key(unit), fact("flight", "finding", finding))

    def _close_older(self, generation: int) -> list[Verdict]:
        """What was slow in a generation that has ended is measured anew."""
        closed: list[Verdict] = []
        for key in self._episodes.open_keys():
            known = self._episodes.get(key)
            if key[0] == "slow" and known is not None and known.generation < generation:
                why = f"generation {generation} has begun"
                closed += self._episodes.close(key, fact("flight", "ended", why))
        return closed


def _is_settled(signals: WorkerSignals) -> bool:
    """Whether its time is a median of steps of this generation, not of the first ones."""
    return signals.compute_s > 0 and signals.num_steps >= COMPUTE_STEPS


def _median_without(ordered: Sequence[float], value: float) -> float | None:
    """Median of a sorted sequence without one ``value`` of it; None if that leaves nothing."""
    left = len(ordered) - 1
    if left < 1:
        return None
    gap = bisect.bisect_left(ordered, value)
    pair = ((left - 1) // 2, left // 2)
    return sum(ordered[at if at < gap else at + 1] for at in pair) / 2


def _because(cause: SlowCause) -> list[Evidence]:
    return [fact("host", "because", cause.why)] if cause.why else []


def _advice(cause: SlowCause) -> Advice:
    usual = ADVICE["slow_rank"]
    return replace(usual, remedy=cause.remedy, confidence=0.9) if cause.why else usual


def _key(unit: _Unit) -> Key:
    return ("slow", unit.ranks[0])


def _who(unit: _Unit) -> str:
    if len(unit.ranks) == 1:
        return f"rank {unit.ranks[0]}"
    return f"ranks {unit.ranks[0]} to {unit.ranks[-1]}, one of which slows the others,"
