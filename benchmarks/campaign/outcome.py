"""How one trace was judged, and the figures of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """A judgement beside the truth."""

    seed: int
    kind: str
    """What was wrong."""
    layout: str
    said: str
    """The class of what was found; empty without a finding."""
    is_right_class: bool
    culprits: frozenset[int]
    named: frozenset[int]
    """Ranks that were named with certainty."""
    can_be_known: bool
    is_exact: bool
    """All culprits and nobody else are named; of faults that are no rank's, the group."""
    innocents: frozenset[int] = frozenset()
    """Named ranks at which nothing is wrong."""
    killed: frozenset[int] = frozenset()
    """Innocents whose process would be ended."""
    beats: int = -1
    """From the fault to the last verdict, -1 without one."""
    is_clean: bool = False


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Shares of all traces with a fault, and counts."""
    faulty = [one for one in outcomes if not one.is_clean]
    known = [one for one in faulty if one.can_be_known]
    confusion = Counter((one.kind, one.said or "nothing") for one in outcomes)
    beats = sorted(one.beats for one in faulty if one.beats >= 0)
    wrong = [one for one in outcomes if one.innocents]
    missed = [one for one in known if not one.is_exact or not one.is_right_class]
    return {
        "traces": len(outcomes),
        "faulty": len(faulty),
        "can_be_known": len(known),
        "exact": _share(sum(one.is_exact for one in known), len(known)),
        "class": _share(sum(one.is_right_class for one in known), len(known)),
        "abstained": _share(sum(not one.said for one in known), len(known)),
        "wrong_namings": len(wrong),
        "wrong_share": _share(len(wrong), len(outcomes)),
        "killed_innocents": sum(len(one.killed) for one in outcomes),
        "false_alarms": sum(one.is_clean and bool(one.said) for one in outcomes),
        "beats_median": beats[len(beats) // 2] if beats else -1,
        "beats_p99": beats[len(beats) * 99 // 100] if beats else -1,
        "confusion": {
            kind: {said: n for (k, said), n in sorted(confusion.items()) if k == kind}
            for kind in sorted({one.kind for one in outcomes})
        },
        "missed": [_row(one) for one in missed[:30]],
        "wrong": [_row(one) for one in wrong[:30]],
    }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 5) if whole else 1.0


def _row(one: Outcome) -> str:
    culprits, named = sorted(one.culprits), sorted(one.named)
    return (f"seed {one.seed}: {one.kind} of {culprits} in {one.layout}; "
            f"said {one.said or 'nothing'} of {named}")  # fmt: skip
