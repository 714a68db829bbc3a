"""Judges the scene of a trace, as if good recorders had been read: the wait-for graph alone."""

from __future__ import annotations

import random

from headway.health.diagnosis.mismatch import find_mismatch
from headway.health.diagnosis.wait_for import find_holdups

from benchmarks.campaign.faults import HOST, Trace, draw
from benchmarks.campaign.outcome import Outcome
from benchmarks.campaign.play import Player
from benchmarks.campaign.scene import NOT_FOUND, draw_lost, name_of, scene_at
from benchmarks.campaign.truth import PROGRAM, truth_of

NAMING = ("missing", "device", "ended")
_CLASSES = (
    dict.fromkeys((*HOST, "stopped", "frozen"), "missing")
    | dict.fromkeys(PROGRAM, "mismatch")
    | {"device": "device", "device unknown": "transport", "transport": "transport",
       "gone": "unreported", "unreported": "unreported", "deadlock": "deadlock", "ended": "ended"}
)  # fmt: skip


def judge_scene(seed: int, most: int) -> Outcome:
    """Draw, play and judge one trace of up to ``most`` ranks."""
    trace = draw(seed, most)
    chance = random.Random(f"scene {seed}")
    played = Player(trace.programs, trace.sizes, seed, 0.02, trace.halts, trace.stuck).play()
    is_clean = not trace.faults and not trace.stuck
    # a clean run is seen anywhere in its steps, and one that hangs once nothing in it moves
    at_s = played.end_s * chance.random() if is_clean else played.end_s + chance.uniform(1, 30)
    lost, late = draw_lost(chance, sorted(trace.programs))
    scene = scene_at(trace, played, at_s, lost, late)
    truth = truth_of(trace, played, sorted(set(trace.programs) - lost))
    mismatch = find_mismatch(scene)
    if mismatch is not None:
        sides = [frozenset(ranks) for _, ranks in mismatch.sides]
        odd = frozenset[int]().union(*sides[1:])
        named = odd if len(sides[0]) > len(odd) else frozenset[int]()
        kinds, suspects = {"mismatch"}, named or odd | sides[0]
    else:
        found = [] if is_clean else find_holdups(scene)
        named = frozenset(rank for one in found if one.kind in NAMING for rank in one.ranks)
        kinds = {one.kind for one in found}
        suspects = frozenset(rank for one in found for rank in one.ranks)
        if trace.stuck:
            [key] = trace.stuck
            is_group = any(one.kind == "transport" and one.group == name_of(key) for one in found)
            suspects = frozenset() if is_group else suspects | {-1}
    return Outcome(
        seed, trace.kind, str(trace.layout), " and ".join(sorted(kinds)),
        _is_right(trace, truth.culprits, kinds, has_lost=bool(lost)),
        truth.culprits, named, truth.can_be_known,
        _is_exact(trace, truth.culprits, named, suspects, lost),
        innocents=named - set(trace.faults), is_clean=is_clean,
    )  # fmt: skip


def _is_right(trace: Trace, culprits: frozenset[int], kinds: set[str], *, has_lost: bool) -> bool:
    expected = {_CLASSES[trace.faults[rank]] for rank in culprits}
    expected |= {"transport"} if trace.stuck else set()
    # what is not known of others is said next to it
    is_lost = has_lost or any(kind in NOT_FOUND for kind in trace.faults.values())
    beside = {"unreported"} if is_lost else set()
    is_clean = not trace.faults and not trace.stuck
    return kinds - beside == expected - beside and (bool(kinds) or is_clean)


def _is_exact(
    trace: Trace, culprits: frozenset[int], named: frozenset[int], suspects: frozenset[int],
    lost: frozenset[int],
) -> bool:  # fmt: skip
    kinds = set(trace.faults.values())
    if trace.stuck or "device unknown" in kinds:
        return not named and (not trace.stuck or not suspects)
    if kinds & {"deadlock", *PROGRAM}:
        return culprits <= suspects and named <= culprits
    unseen = {rank for rank, kind in trace.faults.items() if kind in NOT_FOUND}
    # one that is held may be named although nobody has come to wait for it yet
    return culprits - unseen <= named <= set(trace.faults) - unseen and (
        culprits <= suspects <= set(trace.faults) | lost
    )
