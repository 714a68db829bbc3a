"""Pipeline stages whose ranks all take longer than those of other stages: always, or since a step.

Without replicas the rank of a stage has no peer, and is judged here.
"""

from __future__ import annotations

import numpy as np
from headway.health.slowness.findings import Slowness
from headway.health.slowness.parts import Parts
from headway.health.slowness.peers import median, median_of_others
from headway.health.slowness.spans import raised, usual
from headway.health.slowness.steps import Floats, StepTable


def slow_stages(table: StepTable, parts: Parts) -> list[Slowness]:
    """Stages that have become slower than the others, and the one that always was."""
    if table.grid.pp < 2:
        return []
    # within a replica, whose stages have the same sequences
    unit_us = np.moveaxis(np.where(parts.unit_us > 0, parts.unit_us, np.nan), 1, -1)
    share = median((unit_us / median_of_others(unit_us)).astype(np.float32), 1)
    before = usual(share)
    found = _changed(table, (share / before - 1).astype(np.float32))
    if found or not table.is_grid_known:
        return found
    return _uneven(table, (share - 1).astype(np.float32))


def _changed(table: StepTable, excess: Floats) -> list[Slowness]:
    spans, found = raised(excess), []
    raised_most = spans.level >= 0.5 * np.max(spans.level, initial=0)
    for stage in np.flatnonzero(spans.is_raised & (spans.start > 0) & raised_most).tolist():
        start, end = int(spans.start[stage]), int(spans.end[stage])
        level = float(spans.level[stage])
        ranks = _ranks(table, stage)
        found.append(Slowness(
            "compute", ranks, level, int(table.steps[start]),
            int(table.steps[end - 1]) if end < len(table.steps) else None,
            0.95 if len(ranks) == 1 else 0.8,
            is_one_of=table.grid.dp == 1 and len(ranks) > 1,
            place=f"stage {stage}" if len(ranks) > 1 else "",
            why=(f"compared with the other stages, passes take {1 + level:.2f}x as long as before",
                 f"raised in {spans.num_windows[stage]} of 5 parts of {end - start} steps"),
            alternatives=(("more work on this stage since then", 0.7), ("chance", 0.3)),
        ))  # fmt: skip
    return found


def _uneven(table: StepTable, excess: Floats) -> list[Slowness]:
    spans = raised(excess)
    is_always = spans.end - spans.start >= 0.9 * len(excess)
    stages = np.flatnonzero(spans.is_raised & is_always).tolist()
    if not stages:
        return []
    worst = max(stages, key=lambda stage: float(spans.level[stage]))
    level = float(spans.level[worst])
    has_replicas = table.grid.dp > 1
    return [Slowness(
        "stage_imbalance", _ranks(table, worst), level, None, None,
        0.97 if has_replicas else 0.8, place=f"stage {worst}",
        why=(f"its passes take {1 + level:.2f}x those of other stages in all {len(excess)} steps",
             "all its replicas are alike" if has_replicas else "it has no replica"),
        alternatives=(("a slow machine since the start", 1.0),),
    )]  # fmt: skip


def _ranks(table: StepTable, stage: int) -> tuple[int, ...]:
    size = table.grid.tp * table.grid.dp
    return tuple(range(stage * size, (stage + 1) * size))
