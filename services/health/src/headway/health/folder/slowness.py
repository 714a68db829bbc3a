"""Finds which ranks make every step of a job late, from the times of sections of its steps.

Where ranks meet in a collective, all of them end late, so lengths of sections tell nothing about
who is late: a backward pass that ends with the collective looks equal everywhere. What tells is
when each rank enters it. Clocks of ranks differ; a collective ends at the same time on all of its
members, which gives their difference.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from headway.common.wire.messages.health import Cause
from headway.health.diagnosis.diagnosis import Diagnosis, Observation, Subject
from headway.health.dumps.sections import Section
from headway.health.folder.evidence import Evidence

LEAST_RATIO = 1.08
"""A rank counts as slow if a step would be this much shorter without it."""
LEAST_SHARE = 0.6
"""Share of the steps in which a slow rank must be late."""
DEVIATIONS = 6.0
_MEETING = ("allreduce", "all_reduce", "all-reduce", "reduce", "gather", "sync", "comm", "nccl")
_DATA = ("data", "load", "input", "fetch")
_KEEPING = ("ckpt", "checkpoint", "save")


def judge_slowness(evidence: Evidence) -> list[Diagnosis]:
    """The ranks that enter collectives late in most steps; empty if none does."""
    steps: dict[int, dict[int, list[Section]]] = defaultdict(lambda: defaultdict(list))
    for section in evidence.sections:
        steps[section.step][section.rank].append(section)
    late: dict[int, list[float]] = defaultdict(list)
    own: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    lengths = []
    for ranks in steps.values():
        entries = {rank: meeting for rank, one in ranks.items() if (meeting := _meeting(one))}
        if len(entries) < 2:
            continue
        middle = statistics.median(entry.start_s - entry.end_s for entry in entries.values())
        for rank, entry in entries.items():
            late[rank].append((entry.start_s - entry.end_s) - middle)
            for section in ranks[rank]:
                if section.start_s < entry.start_s:
                    end_s = min(section.end_s, entry.start_s)
                    own[rank][section.name].append(end_s - section.start_s)
        lengths.append(_length(ranks))
    if not lengths:
        return []
    step_s = statistics.median(lengths)
    return [
        _diagnosis(evidence, rank, values, own, step_s)
        for rank, values in sorted(late.items())
        if _is_late(values, late, rank, step_s)
    ]


def _meeting(sections: Sequence[Section]) -> Section | None:
    """The section of a step in which ranks meet: the last one, if there are several."""
    found = [one for one in sections if any(word in one.name.lower() for word in _MEETING)]
    return max(found, key=lambda one: one.end_s, default=None)


def _length(ranks: dict[int, list[Section]]) -> float:
    return statistics.median(
        max(one.end_s for one in sections) - min(one.start_s for one in sections)
        for sections in ranks.values()
    )


def _is_late(
    values: Sequence[float], late: dict[int, list[float]], rank: int, step_s: float
) -> bool:
    lost_s = statistics.median(values)
    others = [statistics.median(other) for key, other in late.items() if key != rank]
    spread_s = 1.4826 * statistics.median(abs(one - statistics.median(others)) for one in others)
    return (
        lost_s > DEVIATIONS * spread_s
        and step_s > LEAST_RATIO * (step_s - lost_s)
        and sum(one > lost_s / 2 for one in values) >= LEAST_SHARE * len(values)
    )


def _diagnosis(
    evidence: Evidence,
    rank: int,
    values: Sequence[float],
    own: dict[int, dict[str, list[float]]],
    step_s: float,
) -> Diagnosis:
    lost_s = statistics.median(values)
    cause, why = _cause(rank, own)
    nodes = {one.rank: one.host for one in evidence.sections if one.host}
    everybody = sorted({one.rank for one in evidence.sections})
    num_late = sum(one > lost_s / 2 for one in values)
    return Diagnosis(
        "slow",
        cause,
        f"rank {rank} enters the collective about {lost_s * 1e3:.0f} ms after the others in "
        f"{num_late} of {len(values)} steps",
        culprits=(Subject(rank, nodes.get(rank, evidence.node_of(rank))),),
        victims=tuple(Subject(other, nodes.get(other, "")) for other in everybody if other != rank),
        where=why,
        why=(
            f"of the {step_s * 1e3:.0f} ms of a step, the others wait about {lost_s * 1e3:.0f} ms",
            "a timer that includes the collective looks equal on all ranks: the others wait in it",
            "time stamps of ranks were aligned by the end of the collective, which they share",
        ),
        do=f"see whether rank {rank} has more work, what else runs on its node, and the clocks and "
        "temperatures of its GPU; once the node is free: `headway health pairwise`",
        confidence=0.9,
        evidence=(Observation("sections", f"{len(values)} steps of {len(everybody)} ranks"),),
    )


def _cause(rank: int, own: dict[int, dict[str, list[float]]]) -> tuple[Cause, str]:
    """Which section before the collective is longer than that of others by about as much."""
    grown: dict[str, float] = {}
    for name, values in own[rank].items():
        others = [statistics.median(own[other][name]) for other in own
                  if other != rank and own[other].get(name)]  # fmt: skip
        if others:
            grown[name] = statistics.median(values) - statistics.median(others)
    if not grown:
        return "compute", ""
    name = max(grown, key=lambda key: grown[key])
    words = f"its {name} takes {grown[name] * 1e3:.0f} ms longer before the collective"
    lower = name.lower()
    if any(word in lower for word in _DATA):
        return "data", words
    if any(word in lower for word in _KEEPING):
        return "checkpoint_write", words
    return "compute", words
