"""Plays a recorded step again with other times: what a step would take if something were faster.

Each rank does its operations in the recorded order, one after the other; those that were begun
together, as a send and a receive, run side by side. A transfer begins when the last of its ranks
has begun to take part. Time between operations, as for launching them, is left out (the what-if
analysis of arXiv 2505.05713, section 3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operation:
    """What one rank did."""

    kind: str
    """Such as ``forward-compute``."""
    rank: int
    stage: int
    seconds: float
    """How long a computation took. For communication, what the transfer took once the last of its
    ranks had arrived: equal on all of them."""
    meeting: Hashable = None
    """Equal on all ranks that communicate with each other here; None of a computation."""
    begins: bool = True
    """Whether the rank takes part from here on; the transfer begins once all have."""
    waits: bool = True
    """Whether the rank waits here for the transfer; who sends need not."""


Step = Mapping[int, Sequence[Sequence[Operation]]]
"""Rank -> its operations in order, those begun together in one sequence."""
Seconds = Callable[[Operation], float]


class UnfinishedError(ValueError):
    """Operations whose other end was not recorded, or in an order that cannot be."""


def replay(step: Step, seconds: Seconds) -> float:
    """How long a step takes if each operation takes ``seconds``.

    Raises:
        UnfinishedError: ranks wait for each other for good.
    """
    needed = _needed(step)
    clock = dict.fromkeys(step, 0.0)
    place = dict.fromkeys(step, 0)
    arrived: dict[Hashable, dict[int, float]] = defaultdict(dict)
    waiting: dict[Hashable, list[int]] = defaultdict(list)
    ends: dict[Hashable, float] = {}
    ready = list(step)
    while ready:
        rank = ready.pop()
        while place[rank] < len(step[rank]):
            together = step[rank][place[rank]]
            if together[0].meeting is None:
                clock[rank] += sum(map(seconds, together))
                place[rank] += 1
                continue
            for one in together:
                here = arrived[one.meeting]
                if one.begins and rank not in here:
                    here[rank] = clock[rank]
                    if len(here) == needed[one.meeting]:
                        ends[one.meeting] = max(here.values()) + seconds(one)
                        ready += waiting.pop(one.meeting, ())
            awaited = [one.meeting for one in together if one.waits]
            missing = [meeting for meeting in awaited if meeting not in ends]
            if missing:
                waiting[missing[0]].append(rank)
                break
            clock[rank] = max([clock[rank], *(ends[meeting] for meeting in awaited)])
            place[rank] += 1
    stuck = [rank for rank in step if place[rank] < len(step[rank])]
    if stuck:
        raise UnfinishedError(f"ranks {stuck[:8]} wait for operations that are not recorded")
    return max(clock.values(), default=0.0)


def _needed(step: Step) -> dict[Hashable, int]:
    ranks: dict[Hashable, set[int]] = defaultdict(set)
    for rank, order in step.items():
        for together in order:
            for one in together:
                if one.meeting is not None and one.begins:
                    ranks[one.meeting].add(rank)
    return {meeting: len(members) for meeting, members in ranks.items()}
