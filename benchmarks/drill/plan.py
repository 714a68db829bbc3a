"""Plans of faults, each a function of its seed."""

from __future__ import annotations

import math
import random
from collections.abc import Collection

from benchmarks.drill import catalogue
from benchmarks.drill.catalogue import Fault, Place, Strike, faults_at, named
from benchmarks.drill.means import why_not

NOT_SIGNALS_SHARE = 0.45


def cannot() -> dict[str, str]:
    """Kinds of fault that cannot be struck on this machine, and why."""
    return {kind: reason for kind, need in catalogue.NEEDS.items() if (reason := why_not(need))}


def witness(seed: int, world: int) -> int:
    """The one rank that no fault of a local plan strikes: its process is watched through all."""
    return seed % world


def plan(
    place: Place,
    seed: int,
    count: int,
    *,
    world: int = 4,
    only: str = "",
    without: Collection[str] = (),
) -> list[Strike]:
    """``count`` faults. Of a local plan more than 40 % are not signals, and one costs a node; of a
    plan for machines each entry comes as often as any other, plus or minus one.

    Args:
        place: where they are to be struck.
        seed: local plans of neighbouring seeds together have every entry.
        count: 2 or more.
        world: number of ranks.
        only: name of the one fault to strike each time, see ``catalogue.named``; on any rank.
        without: kinds that cannot be struck here.
    """
    rng = random.Random(seed)
    if only:
        chosen = [named(only)] * count
    elif place == "local":
        chosen = _shares(seed, count, without)
        rng.shuffle(chosen)
    else:
        known = faults_at(place) * (count // len(faults_at(place)) + 1)
        chosen = rng.sample(known[:count], count)
    spared = witness(seed, world) if place == "local" and not only else -1
    others = [rank for rank in range(world) if rank != spared]
    return [Strike(fault, tuple(rng.sample(others, fault.ranks))) for fault in chosen]


def _shares(seed: int, count: int, without: Collection[str]) -> list[Fault]:
    """One loss, then kills at points, other signals, and what is not a signal."""
    num_alive = math.ceil(NOT_SIGNALS_SHARE * count)
    num_signals = (count - num_alive - 1) // 2
    num_points = count - num_alive - num_signals - 1
    losses = [fault for fault in catalogue.LOSSES if fault.kind not in without]
    chosen = [losses[seed % len(losses)]]
    for group, number in (
        (catalogue.AT_POINTS, num_points),
        (catalogue.SIGNALS, num_signals),
        (catalogue.ALIVE, num_alive),
    ):
        faults = [fault for fault in group if fault.kind not in without]
        chosen += [faults[(seed * number + i) % len(faults)] for i in range(number)]
    return chosen
