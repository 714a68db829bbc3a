"""Ranks that take longer than others of the same work, step after step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from headway.common.wire.messages.health import Cause
from headway.health.slowness.findings import Slowness
from headway.health.slowness.members import slow_members
from headway.health.slowness.parts import PARTS, Part, Parts
from headway.health.slowness.spans import LEAST_STEPS, Spans, raised
from headway.health.slowness.steps import StepTable

CAUSES: dict[Part, Cause] = {
    "own": "compute", "data": "data", "collection": "garbage_collection",
    "snapshot": "checkpoint_write", "other": "host_stall",
}  # fmt: skip
WORDS: dict[Part, str] = {
    "own": "forward and backward passes", "data": "waiting for data",
    "collection": "garbage collections", "snapshot": "waiting until a snapshot is sealed",
    "other": "time that no record names",
}  # fmt: skip
MAX_NAMED = 64
"""A table in which more are raised has another trouble than stragglers."""


def stragglers(table: StepTable, parts: Parts) -> list[Slowness]:
    """One for each rank, or tensor-parallel group, that slows the others; the worst first."""
    spans: dict[Part, Spans] = {}
    for part in PARTS:
        values = parts.excess[part]
        if part == "own":
            values = values[..., 0]
        flat = values.reshape(len(values), -1)
        spans[part] = raised(flat)
    found: dict[int, list[tuple[Part, int]]] = defaultdict(list)
    tp = table.grid.tp
    for part, one in spans.items():
        for column in np.flatnonzero(one.is_raised).tolist():
            found[column if part == "own" else column // tp].append((part, column))
    named = sorted(
        (_straggler(table, unit, cells, spans) for unit, cells in found.items()),
        key=lambda one: -one.excess,
    )
    return named[:MAX_NAMED]


def _straggler(
    table: StepTable, unit: int, cells: list[tuple[Part, int]], spans: dict[Part, Spans]
) -> Slowness:
    tp = table.grid.tp

    def weight(cell: tuple[Part, int]) -> tuple[bool, float]:
        """What lasts counts more than what is over."""
        one, at = spans[cell[0]], cell[1]
        return int(one.end[at]) > len(table.steps) - LEAST_STEPS, float(one.mean[at])

    part, column = max(cells, key=weight)
    one = spans[part]
    start, end = int(one.start[column]), int(one.end[column])
    excess = float(one.mean[column])
    ranks: tuple[int, ...] = (column,)
    if part == "own":
        ranks = slow_members(table, unit, slice(start, end), excess)
    also = [
        (f"{WORDS[other]} as well", float(spans[other].mean[at])) for other, at in cells
        if other != part
    ]  # fmt: skip
    total = excess + sum(share for _, share in also)
    why = [f"its {WORDS[part]} take{'s' if part != 'own' else ''} {_times(part, excess)}"]
    why += [f"{words}: {share:.0%}" for words, share in also]
    why.append(f"slower in {one.num_windows[column]} of 5 windows over {end - start} steps, "
               f"by {one.deviations[column]:.0f} standard deviations")  # fmt: skip
    return Slowness(
        CAUSES[part],
        ranks,
        excess,
        table.first_step(start),
        table.last_step(end),
        _certainty(one, column, part) * excess / total,
        is_one_of=len(ranks) > 1,
        place=f"tensor-parallel group {ranks[0] // tp}" if len(ranks) > 1 else "",
        why=tuple(why),
        alternatives=(*((words, share / total) for words, share in also), *_ELSE[part]),
    )


_ELSE: dict[Part, tuple[tuple[str, float], ...]] = {
    "own": (("other work than its peers", 0.5), ("chance", 0.5)),
    "data": (("a busy machine", 0.5), ("chance", 0.5)),
    "collection": (("a leak in the program", 0.5), ("chance", 0.5)),
    "snapshot": (("a slow disk", 0.5), ("chance", 0.5)),
    "other": (("user code between actions", 0.7), ("chance", 0.3)),
}


def _times(part: Part, excess: float) -> str:
    if part == "own":
        return f"{1 + excess:.2f}x those of its peers"
    return f"{excess:.0%} of the time of a step's passes more than with its peers"


def _certainty(spans: Spans, column: int, part: Part) -> float:
    """Grows with how clear and how lasting it is; what no record names may have any reason."""
    clear = min(float(spans.deviations[column]) / 20, 1.0)
    lasting = min(float(spans.end[column] - spans.start[column]) / 15, 1.0)
    return (0.9 + 0.06 * clear + 0.03 * lasting) * (0.95 if part == "other" else 1.0)


def slow_units(found: list[Slowness], table: StepTable) -> Iterator[int]:
    """The tensor-parallel groups, counted from 0, of ranks that are named."""
    for one in found:
        yield from {rank // table.grid.tp for rank in one.ranks}
