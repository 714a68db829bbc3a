"""Pipeline stages whose ranks all take longer than those of other stages: always, or since a step.

Without replicas the rank of a stage has no peer, and is judged here; and so is a rank, or a
tensor-parallel group, that is all of a run, by its own earlier time.
"""

from __future__ import annotations

import numpy as np
from headway.health.slowness.findings import Slowness
from headway.health.slowness.parts import Parts
from headway.health.slowness.peers import median, median_of_others
from headway.health.slowness.spans import LEAST_STEPS, raised, usual
from headway.health.slowness.steps import Floats, StepTable

LEAST_ALONE = 2.0
"""Excess of the passes of a run of one unit over its earlier ones: longer sequences or a busy
machine would explain less."""


def slow_stages(table: StepTable, parts: Parts) -> list[Slowness]:
    """Stages that have become slower than the others, and the one that always was."""
    if table.grid.pp < 2:
        return _alone(table, parts) if table.grid.dp == 1 else []
    share = _shares(parts)
    found = _changed(table, parts, _over_usual(share))
    if found or not table.is_grid_known:
        return found
    return _uneven(table, (share - 1).astype(np.float32))


def relative_times(table: StepTable, parts: Parts) -> Floats:
    """By step and stage the time of its passes, over that of other stages, if there are any."""
    return _shares(parts) if table.grid.pp > 1 else parts.stage_us


def _shares(parts: Parts) -> Floats:
    """Within a replica, whose stages have the same sequences."""
    unit_us = np.moveaxis(np.where(parts.unit_us > 0, parts.unit_us, np.nan), 1, -1)
    return median((unit_us / median_of_others(unit_us)).astype(np.float32), 1)


def _over_usual(values: Floats) -> Floats:
    before = usual(values)
    return (values / np.where(before > 0, before, np.nan) - 1).astype(np.float32)


def _alone(table: StepTable, parts: Parts) -> list[Slowness]:
    spans = raised(_over_usual(relative_times(table, parts)), LEAST_ALONE)
    if not spans.is_raised[0] or spans.start[0] == 0:
        return []
    start, end, level = int(spans.start[0]), int(spans.end[0]), float(spans.level[0])
    ranks = _ranks(table, 0)
    return [Slowness(
        "compute", ranks, level, int(table.steps[start]),
        int(table.steps[end - 1]) if end < len(table.steps) else None, 0.7,
        is_one_of=len(ranks) > 1, place="tensor-parallel group 0" if len(ranks) > 1 else "",
        why=(f"passes take {1 + level:.2f}x as long as before",
             "no other rank does the same work, so they are compared with earlier ones alone"),
        alternatives=(("more work since then", 0.6), ("a busy machine", 0.4)),
    )]  # fmt: skip


def _changed(table: StepTable, parts: Parts, excess: Floats) -> list[Slowness]:
    spans, found = raised(excess), []
    raised_most = spans.level >= 0.5 * np.max(spans.level, initial=0)
    for stage in np.flatnonzero(spans.is_raised & (spans.start > 0) & raised_most).tolist():
        start, end = int(spans.start[stage]), int(spans.end[stage])
        level = float(spans.level[stage])
        if not _has_grown(parts.stage_us[:, stage], start, end, level):
            continue
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


def _has_grown(stage_us: Floats, start: int, end: int, level: float) -> bool:
    """Whether it is this stage that has changed, and not the others that have become faster."""
    before = median(stage_us[max(0, start - LEAST_STEPS) : start, None], 0)[0]
    return bool(median(stage_us[start:end, None], 0)[0] >= (1 + level / 2) * before)


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
