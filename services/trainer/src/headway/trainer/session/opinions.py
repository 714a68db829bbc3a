"""Judges which replica computed a gradient wrong, from several that computed the same one.

Pass ``n`` of a replica's micro-batches is done by the replica ``n`` places before it: pass 0 by
itself, the others by as many others as there are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

Digest = tuple[float, float]
Row = Sequence[Sequence[Digest]]
"""What one replica computed: a digest by pass and parameter."""


@dataclass(frozen=True)
class Judgement:
    """Verdict on the ranks that hold the same parameters, one in each replica."""

    wrong: dict[int, frozenset[int]]
    """Replicas that computed something wrong, each with the parameters of which they did."""
    unsure: tuple[int, ...] = ()
    """Replicas of which some are wrong, where it is not known which."""
    parameter: int = -1
    """The first one that they differ in."""
    is_random: bool = False
    """No two passes gave the same, so nothing is known: computing is not reproducible."""


def computed_by(replica: int, number: int, num_replicas: int) -> int:
    """The replica that does pass ``number`` of the micro-batches of ``replica``."""
    return (replica - number) % num_replicas


def agree(rows: Sequence[Row]) -> bool:
    """Whether all passes gave the same, for every replica and parameter."""
    return all(
        len(set(values)) == 1
        for replica in range(len(rows))
        for values in _by_parameter(rows, replica)
    )


def judge(rows: Sequence[Row]) -> Judgement:
    """Judge four passes; ``rows`` are those of the replicas in their order."""
    wrong: defaultdict[int, set[int]] = defaultdict(set)
    unsure: set[int] = set()
    first = -1
    for replica in range(len(rows)):
        makers = [computed_by(replica, n, len(rows)) for n in range(len(rows[0]))]
        for parameter, values in enumerate(_by_parameter(rows, replica)):
            counts = Counter(values).most_common(2)
            if len(counts) == 1:
                continue
            if counts[0][1] == 1:
                return Judgement({}, is_random=True)
            if counts[0][1] == counts[1][1]:
                unsure |= set(makers)
                first = parameter if first < 0 else min(first, parameter)
                continue
            for maker, value in zip(makers, values, strict=True):
                if value != counts[0][0]:
                    wrong[maker].add(parameter)
    if wrong:
        return Judgement({maker: frozenset(found) for maker, found in wrong.items()})
    return Judgement({}, tuple(sorted(unsure)), first)


def _by_parameter(rows: Sequence[Row], replica: int) -> list[tuple[Digest, ...]]:
    """The digests of each parameter's gradient for the micro-batches of ``replica``, by pass."""
    passes = range(len(rows[0]))
    made = [rows[computed_by(replica, number, len(rows))][number] for number in passes]
    return list(zip(*made, strict=True))
