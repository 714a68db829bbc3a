"""Validates a lowered schedule: every action once, in a working order, without deadlock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headway.common.errors import ConfigError
from headway.common.plan.schedule.actions import COMPUTE, RECEIVES, SENDS, Action, Kind, Schedule

_BODY = COMPUTE | SENDS | RECEIVES | {Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.DATA}


@dataclass(frozen=True, slots=True)
class Proof:
    """What ``validate`` found.

    ``peak_in_flight[r]``: most pairs of chunk and micro-batch whose activations rank
      r holds at once, from
    their forward to their weight gradient; 0 for a forward-only schedule.
    """

    peak_in_flight: tuple[int, ...]


def validate(schedule: Schedule) -> Proof:
    """Check a lowered schedule under the strictest transport: a send waits for its receive.

    A schedule that finishes there also finishes under every laxer transport (background sends,
    receives posted early): in the order of the strict run, each action finds its inputs ready.

    Raises:
        ConfigError: an action is missing, duplicated or out of order, or ranks deadlock;
            names rank and action.
    """
    if len(schedule.ranks) != schedule.pp:
        first = min(len(schedule.ranks), schedule.pp)
        _refuse(schedule, first, f"has no list, or one too many: there are {len(schedule.ranks)}")
    for rank, order in enumerate(schedule.ranks):
        _check_complete(schedule, rank, order)
        _check_frame(schedule, rank, order)
        _check_order(schedule, rank, order)
        _check_sends(schedule, rank, order)
    _run_rendezvous(schedule)
    return Proof(tuple(0 if schedule.forward_only else _peak(order) for order in schedule.ranks))


def _expected(schedule: Schedule, rank: int) -> Counter[tuple[Kind, int, int]]:
    """Compute and message actions that a rank must do; a backward counts as its two halves."""
    wanted: Counter[tuple[Kind, int, int]] = Counter()
    for chunk in range(schedule.vp):
        stage = schedule.stage_map.stage(rank, chunk)
        kinds = [Kind.FORWARD]
        if _is_elsewhere(schedule, rank, stage - 1):
            kinds.append(Kind.RECV_FORWARD)
        if _is_elsewhere(schedule, rank, stage + 1):
            kinds.append(Kind.SEND_FORWARD)
        if not schedule.forward_only:
            kinds += [Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT]
            if _is_elsewhere(schedule, rank, stage + 1):
                kinds.append(Kind.RECV_BACKWARD)
            if _is_elsewhere(schedule, rank, stage - 1):
                kinds.append(Kind.SEND_BACKWARD)
        wanted.update(
            (kind, chunk, mb) for kind in kinds for mb in range(schedule.num_micro_batches)
        )
    return wanted


def _is_elsewhere(schedule: Schedule, rank: int, stage: int) -> bool:
    """Whether there is such a stage, on another rank, so that results need a message."""
    return 0 <= stage < schedule.num_stages and schedule.stage_map.place(stage)[0] != rank


def _check_complete(schedule: Schedule, rank: int, order: tuple[Action, ...]) -> None:
    found: Counter[tuple[Kind, int, int]] = Counter()
    for action in order:
        key = (action.chunk, action.micro_batch)
        if action.kind is Kind.BACKWARD:
            found.update([(Kind.BACKWARD_INPUT, *key), (Kind.BACKWARD_WEIGHT, *key)])
        elif action.kind in COMPUTE | SENDS | RECEIVES:
            found[action.kind, *key] += 1
    wanted = _expected(schedule, rank)
    missing, extra = wanted - found, found - wanted
    if missing or extra:
        what, which = ("misses", missing) if missing else ("has too many", extra)
        kind, chunk, mb = next(iter(which))
        _refuse(schedule, rank, f"{what} {Action(kind, chunk, mb)}")
    for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
        chunks = sorted(a.chunk for a in order if a.kind is kind)
        if chunks != list(range(0 if schedule.forward_only else schedule.vp)):
            _refuse(schedule, rank, f"{kind.name} of chunks {chunks}")


def _check_frame(schedule: Schedule, rank: int, order: tuple[Action, ...]) -> None:
    """Ranks that read load data before they compute; three actions end a training step."""
    kinds = [action.kind for action in order]
    takes_data = schedule.reads(rank)
    if kinds.count(Kind.DATA) != takes_data:
        _refuse(schedule, rank, f"has {kinds.count(Kind.DATA)} DATA instead of {takes_data:d}")
    if takes_data and any(kind in COMPUTE for kind in kinds[: kinds.index(Kind.DATA)]):
        _refuse(schedule, rank, "computes before DATA")
    end = [] if schedule.forward_only else [Kind.NORM, Kind.OPTIMIZER, Kind.SNAPSHOT]
    body = kinds[: len(kinds) - len(end)]
    if kinds[len(body) :] != end:
        _refuse(schedule, rank, "does not end with NORM, OPTIMIZER, SNAPSHOT")
    for kind in body:
        if kind not in _BODY:
            _refuse(schedule, rank, f"has {kind.name} where it does not belong")


def _check_sends(schedule: Schedule, rank: int, order: tuple[Action, ...]) -> None:
    """Check that a result leaves before the rank does anything that takes time.

    Only receives, which are posted there and waited for elsewhere, may come between, and none after
    a split backward, except in a V: there two neighbours may send to each other at the same time,
    and one of them has to receive first.
    """
    for index, action in enumerate(order):
        if action.kind not in SENDS:
            continue
        made = Kind.FORWARD if action.kind is Kind.SEND_FORWARD else Kind.BACKWARD_INPUT
        before = next((a for a in reversed(order[:index]) if a.kind not in RECEIVES), None)
        key = (action.chunk, action.micro_batch)
        if (
            before is None
            or _half(before.kind) is not made
            or (before.chunk, before.micro_batch) != key
        ):
            _refuse(schedule, rank, f"{action} does not follow {Action(made, *key)}")
        if (
            before is not None
            and not schedule.is_v
            and before.kind is Kind.BACKWARD_INPUT
            and order[index - 1] is not before
        ):
            _refuse(schedule, rank, f"{action} does not follow {before} directly")


def _half(kind: Kind) -> Kind:
    """The result of a compute action that is sent on; for a full backward the input gradient."""
    return Kind.BACKWARD_INPUT if kind is Kind.BACKWARD else kind


def _check_order(schedule: Schedule, rank: int, order: tuple[Action, ...]) -> None:
    """Check the order of each chunk's micro-batches, weight gradients and reduction.

    Micro-batches go through each chunk in order, weight gradients are summed in that order, and the
    reduction of a chunk follows its last one.
    """
    next_forward = [0] * schedule.vp
    next_mb = [0] * schedule.vp
    reduced: set[int] = set()
    gathered: set[int] = set()
    for action in order:
        if action.kind is Kind.ALL_GATHER:
            gathered.add(action.chunk)
        elif action.kind is Kind.REDUCE_SCATTER:
            reduced.add(action.chunk)
            if next_mb[action.chunk] != schedule.num_micro_batches:
                _refuse(schedule, rank, f"{action} comes before the chunk's last weight gradient")
        elif action.kind in COMPUTE and not schedule.forward_only and action.chunk not in gathered:
            _refuse(schedule, rank, f"{action} comes before its chunk's all-gather")
        if action.kind in (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
            expected = next_forward if action.kind is Kind.FORWARD else next_mb
            if action.micro_batch != expected[action.chunk]:
                _refuse(schedule, rank, f"{action} is out of micro-batch order")
            expected[action.chunk] += 1


def _run_rendezvous(schedule: Schedule) -> None:
    """Run all lists; a send and its receive happen together or not at all."""
    at = [0] * schedule.pp
    have: list[set[tuple[Kind, int, int]]] = [set() for _ in range(schedule.pp)]
    moved = True
    while moved:
        moved = False
        for rank in range(schedule.pp):
            while at[rank] < len(schedule.ranks[rank]) and _step(schedule, rank, at, have):
                moved = True
    for rank, order in enumerate(schedule.ranks):
        if at[rank] < len(order):
            _refuse(schedule, rank, f"waits forever at {order[at[rank]]}")


def _step(
    schedule: Schedule, rank: int, at: list[int], have: list[set[tuple[Kind, int, int]]]
) -> bool:
    """Do the rank's next action if it can be done now."""
    action = schedule.ranks[rank][at[rank]]
    if action.kind in RECEIVES:
        return False  # handled with its send
    if action.kind in SENDS:
        return _exchange(schedule, rank, action, at, have)
    if action.kind in COMPUTE:
        _compute(schedule, rank, action, have[rank])
    at[rank] += 1
    return True


def _exchange(
    schedule: Schedule,
    rank: int,
    send: Action,
    at: list[int],
    have: list[set[tuple[Kind, int, int]]],
) -> bool:
    forward = send.kind is Kind.SEND_FORWARD
    made = (Kind.FORWARD if forward else Kind.BACKWARD_INPUT, send.chunk, send.micro_batch)
    if made not in have[rank]:
        _refuse(schedule, rank, f"{send} comes before what it sends is made")
    stage = schedule.stage_map.stage(rank, send.chunk)
    peer, chunk = schedule.stage_map.place(stage + (1 if forward else -1))
    if peer != send.peer:
        _refuse(schedule, rank, f"{send} goes to rank {send.peer}, its stage is on {peer}")
    other = schedule.ranks[peer][at[peer]] if at[peer] < len(schedule.ranks[peer]) else None
    kind = Kind.RECV_FORWARD if forward else Kind.RECV_BACKWARD
    if other != Action(kind, chunk, send.micro_batch, rank):
        return False
    have[peer].add((kind, chunk, send.micro_batch))
    at[peer] += 1
    at[rank] += 1
    return True


def _compute(
    schedule: Schedule, rank: int, action: Action, have: set[tuple[Kind, int, int]]
) -> None:
    """Check that inputs are there. Stages on one rank hand over without a message."""
    stages, mb, chunk = schedule.stage_map, action.micro_batch, action.chunk
    stage = stages.stage(rank, chunk)
    needs: list[tuple[Kind, int, int]] = []
    if action.kind is Kind.FORWARD and stage > 0:
        is_received = _is_elsewhere(schedule, rank, stage - 1)
        local = (Kind.FORWARD, stages.place(stage - 1)[1], mb)
        needs.append((Kind.RECV_FORWARD, chunk, mb) if is_received else local)
    if action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
        needs.append((Kind.FORWARD, chunk, mb))
        if stage < schedule.num_stages - 1:
            is_received = _is_elsewhere(schedule, rank, stage + 1)
            local = (Kind.BACKWARD_INPUT, stages.place(stage + 1)[1], mb)
            needs.append((Kind.RECV_BACKWARD, chunk, mb) if is_received else local)
    if action.kind is Kind.BACKWARD_WEIGHT:
        needs.append((Kind.BACKWARD_INPUT, chunk, mb))
    for need in needs:
        if need not in have:
            _refuse(schedule, rank, f"{action} comes before {Action(*need)}")
    have.add((_half(action.kind), chunk, mb))


def _peak(order: tuple[Action, ...]) -> int:
    """Most (chunk, micro-batch) pairs between their forward and their last gradient."""
    live = peak = 0
    for action in order:
        if action.kind is Kind.FORWARD:
            live += 1
            peak = max(peak, live)
        elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
            live -= 1
    return peak


def _refuse(schedule: Schedule, rank: int, what: str) -> None:
    raise ConfigError(
        f"schedule {schedule.name!r} (pp={schedule.pp}, vp={schedule.vp}, "
        f"{schedule.num_micro_batches} micro-batches): rank {rank} {what}",
        remedy="fix the schedule's generator",
    )
