"""A played run as a scene: positions of all ranks at the end, as good recorders would give them."""

from __future__ import annotations

import bisect
import random
from collections import defaultdict

from headway.common.plan.collectives import GroupKind, Op
from headway.health.diagnosis.positions import Group, Operation, Pending, Position, Scene

from benchmarks.campaign.faults import Trace
from benchmarks.campaign.play import Played
from benchmarks.campaign.program import Key, Move, What, group_of
from benchmarks.campaign.sight import ON_DEVICE, Sight

NOT_FOUND = ("gone", "unreported")
"""Faults after which nothing is known of a rank."""
BEAT_S = 0.5


def name_of(key: Key) -> str:
    """A group's name in scenes."""
    return f"{key[0].name} {key[1]}"


def draw_lost(chance: random.Random, ranks: list[int]) -> tuple[frozenset[int], frozenset[int]]:
    """Ranks of which nothing is known, and those seen a beat before: 1 to 10 % altogether.

    Positions seen twice are the same as those seen once.
    """
    share = chance.uniform(0.01, 0.10)
    affected = [rank for rank in ranks if chance.random() < share]
    lost = frozenset(rank for rank in affected if chance.random() < 1 / 3)
    return lost, frozenset(rank for rank in affected if rank not in lost and chance.random() < 0.5)


def scene_at(
    trace: Trace, played: Played, now_s: float, lost: frozenset[int], late: frozenset[int]
) -> Scene:
    """The scene at a time, without ``lost`` ranks and with ``late`` ones a beat before."""
    grid = trace.layout.grid
    groups = {
        name_of(key): Group(name_of(key), group_of(grid, key), key[0] >= GroupKind.FORWARD)
        for key in trace.sizes
        if key[0] is not GroupKind.EVERY_RANK
    }
    positions = {
        rank: _position(trace, played, rank, now_s - BEAT_S if rank in late else now_s)
        for rank in trace.programs
        if rank not in lost and trace.faults.get(rank) not in NOT_FOUND
    }
    return Scene(groups, positions)


def _position(trace: Trace, played: Played, rank: int, now_s: float) -> Position:
    track, on_device = played.tracks[rank], trace.on_device
    place = max(1, bisect.bisect_right(track.began, now_s))
    sight = Sight(trace, played, rank, 1 << 30, 0.0)
    host = sight.host(place, now_s) if on_device else place
    knows_starts = on_device and "device unknown" not in trace.faults.values()
    move, ended_s = track.moves[place - 1], track.ended[place - 1]
    is_over = place == len(track.moves) and ended_s <= now_s
    is_waiting = move.what is What.WAIT and ended_s > now_s
    is_held = trace.halts.get(rank) == place - 1 and trace.faults[rank] not in ON_DEVICE
    position = Position(
        rank,
        is_working=is_held or (not is_waiting and not is_over and (knows_starts or not on_device)),
        runs_ahead=on_device and not is_held,
        has_ended=is_over and trace.faults.get(rank) == "ended",
        knows_starts=knows_starts,
    )
    counts: dict[Key, int] = defaultdict(int)
    pending = []
    for index in range(host):
        one = track.moves[index]
        if one.what is not What.ENTER or one.key[0] is GroupKind.EVERY_RANK:
            continue
        counts[one.key] += 1
        number, name = counts[one.key], name_of(one.key)
        position.entered[name] = number
        position.operations[name, number] = _operation(one)
        done = played.done.get(one.key, [])
        if len(done) >= number and done[number - 1] <= now_s:
            position.done[name] = number
        else:
            pending.append(Pending(name, number, index < place if knows_starts else None))
    position.pending = tuple(pending)
    return position


def _operation(move: Move) -> Operation:
    return Operation(Op(move.op).name.lower(), move.nbytes)
