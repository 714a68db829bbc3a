"""When each compute action would run if messages took no time; lowering follows this order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.common.errors import ConfigError
from headway.common.plan.schedule.actions import Action, Kind, Schedule

UNIT_COST = {
    Kind.FORWARD: 1.0,
    Kind.BACKWARD: 2.0,
    Kind.BACKWARD_INPUT: 1.0,
    Kind.BACKWARD_WEIGHT: 1.0,
}
"""A backward costs two forwards, one for each gradient (Megatron-LM, arXiv
2104.04473, section 2.2)."""


@dataclass(frozen=True, slots=True)
class Span:
    """One compute action in unit time."""

    rank: int
    action: Action
    start: float
    end: float


def unit_cost(rank: int, action: Action) -> float:
    """``UNIT_COST``, the same on every rank."""
    del rank
    return UNIT_COST[action.kind]


def unit_timeline(
    schedule: Schedule, cost: Callable[[int, Action], float] = unit_cost
) -> list[Span]:
    """Every compute action with its start and end, sorted by start, then rank.

    Args:
        cost: how long an action takes on a pipeline rank, in any unit; ``UNIT_COST`` by default.

    Raises:
        ConfigError: the lists wait for each other in a cycle, or for an action
            that no list contains.
    """
    done: dict[
        tuple[Kind, int, int], float
    ] = {}  # (forward or backward, virtual stage, micro-batch) -> end
    clock = [0.0] * schedule.pp
    at = [0] * schedule.pp
    spans: list[Span] = []
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(schedule.ranks):
            while at[rank] < len(order):
                action = order[at[rank]]
                ready = _ready(schedule, rank, action, done)
                if ready is None:
                    break
                start = max(clock[rank], ready)
                clock[rank] = start + cost(rank, action)
                spans.append(Span(rank, action, start, clock[rank]))
                kind = Kind.FORWARD if action.kind is Kind.FORWARD else Kind.BACKWARD
                if action.kind is not Kind.BACKWARD_WEIGHT:
                    stage = schedule.stage_map.stage(rank, action.chunk)
                    done[kind, stage, action.micro_batch] = clock[rank]
                at[rank] += 1
                moved = True
    for rank, order in enumerate(schedule.ranks):
        if at[rank] < len(order):
            raise ConfigError(
                f"schedule {schedule.name!r}: rank {rank} waits forever at {order[at[rank]]}",
                remedy="the compute order is impossible; fix its generator",
            )
    return sorted(spans, key=lambda span: (span.start, span.rank))


def _ready(
    schedule: Schedule, rank: int, action: Action, done: dict[tuple[Kind, int, int], float]
) -> float | None:
    """When the action's input is ready; None if its producer has not run yet."""
    stage, last = schedule.stage_map.stage(rank, action.chunk), schedule.num_stages - 1
    mb = action.micro_batch
    if action.kind is Kind.FORWARD:
        return 0.0 if stage == 0 else done.get((Kind.FORWARD, stage - 1, mb))
    if action.kind is Kind.BACKWARD_WEIGHT:
        return done.get((Kind.BACKWARD, stage, mb))
    own = done.get((Kind.FORWARD, stage, mb))
    above = 0.0 if stage == last else done.get((Kind.BACKWARD, stage + 1, mb))
    return None if own is None or above is None else max(own, above)
