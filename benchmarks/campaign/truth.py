"""What is true of a played trace: who is at fault, and whether that could be known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from headway.common.plan.collectives import GroupKind

from benchmarks.campaign.faults import HOST, Trace
from benchmarks.campaign.play import NEVER, Played
from benchmarks.campaign.program import Key, What, group_of

PROGRAM = ("op", "size", "skipped")
NAMED = (*HOST, "device", "stopped", "frozen", "gone", "unreported", "ended")
"""Faults by which a rank holds up the others."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The truth of one trace."""

    culprits: frozenset[int]
    """Ranks that hold up others, or run another program, or wait in another order."""
    can_be_known: bool
    """Whether what is seen of the ranks is enough to tell the culprits and the class."""


def truth_of(trace: Trace, played: Played, seen: Collection[int]) -> Truth:
    """``seen``: the ranks of which anything is known."""
    if not trace.faults and not trace.stuck:
        return Truth(frozenset(), True)
    kinds = set(trace.faults.values())
    if kinds == {"skipped"} and not _shows(played):
        return Truth(frozenset(trace.faults), False)
    if not kinds <= set(NAMED):
        # a group with a member that is not seen could have another reason
        return Truth(frozenset(trace.faults), len(seen) == len(trace.programs))
    if trace.stuck:
        return Truth(frozenset(), len(seen) == len(trace.programs))
    culprits = _awaited(trace, played, trace.programs)
    is_known = culprits <= set(seen) and _awaited(trace, played, seen) == culprits
    return Truth(culprits, is_known)


def _awaited(trace: Trace, played: Played, by: Collection[int]) -> frozenset[int]:
    """Halted ranks that have not entered what one of these ranks waits in."""
    found = set()
    for rank in by:
        waits_in = played.tracks[rank].blocked_in
        if waits_in is None:
            continue
        key, number = waits_in
        for member in group_of(trace.layout.grid, key):
            track = played.tracks[member]
            has_entered = any(k == key and n >= number for k, n in track.tickets.values())
            is_halted = track.ended[-1] >= NEVER and track.blocked_in is None
            if not has_entered and (is_halted or trace.faults.get(member) == "ended"):
                found.add(member)
    return frozenset(found)


def _shows(played: Played) -> bool:
    """Whether a collective that was left out made members meet in different ones.

    Else its rank met the others in the next one, which is of the same kind and size.
    """
    done, kinds = played.done, defaultdict[tuple[Key, int], set[tuple[int, int]]](set)
    for track in played.tracks.values():
        for move in track.moves[: len(track.began)]:
            key, number = track.tickets.get(move.ticket, ((GroupKind.TP, -1), 0))
            is_open = number > len(done.get(key, ()))
            if is_open and move.what is What.ENTER and key[0] < GroupKind.EVERY_RANK:
                kinds[key, number].add((move.op, move.nbytes))
    return any(len(found) > 1 for found in kinds.values())
