"""How much faster steps would be without stragglers, and what makes them slow.

Ideally each computation takes the mean of its kind over all ranks and steps, and each transfer the
median of its kind: then nobody waits for a slower one (arXiv 2505.05713, section 3.2). The share of
a cause is how much of what is lost returns if its operations alone are ideal.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from headway.console.analysis.replay import Operation, Step, replay

Key = TypeVar("Key", int, str)
MAX_STEPS = 8
"""Replayed for each cause, evenly from all that were recorded."""
LEAST_SHARE = 0.5
"""Share of the loss from which on something counts as its cause."""
LEAST_SLOWDOWN = 1.1
"""Below it a job is said to have no stragglers (as in the paper, section 4)."""


@dataclass(frozen=True)
class WhatIf:
    """What is lost by stragglers, and by what; shares may add up to more or less than one."""

    seconds: float
    """Mean time of a step, without the time between operations."""
    ideal_seconds: float
    by_rank: dict[int, float]
    by_stage: dict[int, float]
    by_kind: dict[str, float]

    @property
    def slowdown(self) -> float:
        """How much longer a step takes than without stragglers; 1 is none."""
        return self.seconds / self.ideal_seconds if self.ideal_seconds > 0 else 1.0

    @property
    def cause(self) -> str:
        """In one sentence: the narrowest subject that explains at least half of the loss."""
        if self.slowdown < LEAST_SLOWDOWN:
            return "there are no stragglers that matter"
        rank, of_rank = _most(self.by_rank)
        stage, of_stage = _most(self.by_stage)
        kind, of_kind = _most(self.by_kind)
        if of_rank >= LEAST_SHARE:
            return f"rank {rank} is slow: {of_rank:.0%} of what is lost, most of it in {kind}"
        if of_stage >= LEAST_SHARE:
            return (
                f"stage {stage} has more to do than others: {of_stage:.0%} of what is lost; "
                "balance the layers"
            )
        if of_kind >= LEAST_SHARE and _is_transfer(str(kind)):
            return f"{kind} is slow between some ranks: {of_kind:.0%} of what is lost"
        return (
            f"no rank, stage or transfer explains half of it; most is in {kind} ({of_kind:.0%}): "
            "compare the lengths of sequences, and collections of garbage"
        )


def what_if(steps: Iterable[Step]) -> WhatIf:
    """Replay steps as they were, without stragglers, and without those of each subject.

    Raises:
        ValueError: there are no steps, or one cannot be replayed.
    """
    recorded = list(steps)
    if not recorded:
        raise ValueError("no step was recorded")
    ideal = _ideal(recorded)
    some = recorded[:: max(1, len(recorded) // MAX_STEPS)][:MAX_STEPS]
    spent_s, ideal_s = _mean(some, lambda _: False, ideal), _mean(some, lambda _: True, ideal)
    lost_s = spent_s - ideal_s

    def share(is_cause: Callable[[Operation], bool]) -> float:
        return (spent_s - _mean(some, is_cause, ideal)) / lost_s if lost_s > 0 else 0.0

    def shares(of: Callable[[Operation], Key]) -> dict[Key, float]:
        keys = {of(one) for step in some for one in _operations(step)}
        return {key: share(partial(_is, of, key)) for key in sorted(keys)}

    return WhatIf(
        _mean(recorded, lambda _: False, ideal),
        _mean(recorded, lambda _: True, ideal),
        shares(lambda one: one.rank),
        shares(lambda one: one.stage),
        shares(lambda one: one.kind),
    )


def _is(of: Callable[[Operation], Key], key: Key, operation: Operation) -> bool:
    return of(operation) == key


def _ideal(steps: Sequence[Step]) -> dict[str, float]:
    """Kind -> seconds without stragglers."""
    times: dict[str, list[float]] = defaultdict(list)
    transfers: dict[str, dict[tuple[int, object], float]] = defaultdict(dict)
    for number, step in enumerate(steps):
        for one in _operations(step):
            if one.meeting is None:
                times[one.kind].append(one.seconds)
            else:
                transfers[one.kind][number, one.meeting] = one.seconds
    return {kind: statistics.fmean(values) for kind, values in times.items()} | {
        kind: statistics.median(values.values()) for kind, values in transfers.items()
    }


def _mean(
    steps: Sequence[Step], is_cause: Callable[[Operation], bool], ideal: dict[str, float]
) -> float:
    return statistics.fmean(
        replay(step, lambda one: ideal[one.kind] if is_cause(one) else one.seconds)
        for step in steps
    )


def _operations(step: Step) -> Iterable[Operation]:
    return (one for order in step.values() for together in order for one in together)


def _most(shares: dict[Key, float]) -> tuple[Key, float]:
    key, share = max(shares.items(), key=lambda item: item[1])
    return key, min(share, 1.0)


def _is_transfer(kind: str) -> bool:
    return any(word in kind for word in ("send", "recv", "all-reduce", "gather", "scatter"))
