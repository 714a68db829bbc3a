"""Pipeline stages whose ranks all take longer than those of other stages: always, or for a time.

Of two stages the times show only that one has become slower or the other one faster, so a stage is
named only if its own passes change abruptly: upward where it begins, or downward where it ends. A
stage that always was slower has more layers or other work; its ranks are not at fault.

Without replicas the rank of a stage has no peer, and is judged here; and so is a rank, or a
tensor-parallel group, that is all of a run, by its own earlier time.
"""

from __future__ import annotations

import numpy as np
from headway.health.slowness.findings import Slowness
from headway.health.slowness.members import slow_members
from headway.health.slowness.parts import Parts
from headway.health.slowness.peers import median, median_of_others
from headway.health.slowness.spans import LEAST, Spans, raised, usual
from headway.health.slowness.steps import Floats, StepTable

LEAST_ALONE = 2.0
"""Excess of the passes of a run of one unit over its earlier ones: longer sequences or a busy
machine would explain less."""
NEAR = 12
"""Steps on either side of a change that show it."""
MOST_CHANGES = 3
"""Most rounds of setting changes of other stages apart from a stage's own."""


def slow_stages(table: StepTable, parts: Parts) -> list[Slowness]:
    """Stages that have become slower than the others, and the one that always was."""
    if table.grid.pp < 2:
        return _alone(table, parts) if table.grid.dp == 1 else []
    share = _shares(parts)
    found = _changed(table, parts, share)
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
    ranks = slow_members(table, 0, slice(start, end), level)
    return [Slowness(
        "compute", ranks, level, table.first_step(start), table.last_step(end), 0.7,
        is_one_of=len(ranks) > 1, place="tensor-parallel group 0" if len(ranks) > 1 else "",
        why=(f"passes take {1 + level:.2f}x as long as before",
             "no other rank does the same work, so they are compared with earlier ones alone"),
        alternatives=(("more work since then", 0.6), ("a busy machine", 0.4)),
    )]  # fmt: skip


def _changed(table: StepTable, parts: Parts, share: Floats) -> list[Slowness]:
    share, found = share.copy(), dict[int, Slowness]()
    for _ in range(MOST_CHANGES):
        spans, is_corrected = raised(_over_usual(share)), False
        for stage in np.flatnonzero(spans.is_raised).tolist():
            start, end = int(spans.start[stage]), int(spans.end[stage])
            level = _level(share[:, stage], start, end)
            if stage in found or level < LEAST:
                continue
            if _is_own(parts.stage_us[:, stage], start, end, level):
                found[stage] = _of_stage(table, stage, spans, level)
            else:  # others have changed the other way, which may hide a change of its own
                share[start:end, stage] /= 1 + level
                is_corrected = True
        if not is_corrected:
            break
    most = max((one.excess for one in found.values()), default=0.0)
    return [one for one in found.values() if one.excess >= most / 2]


def _of_stage(table: StepTable, stage: int, spans: Spans, level: float) -> Slowness:
    start, end = int(spans.start[stage]), int(spans.end[stage])
    ranks, usual_at = _ranks(table, stage), "before" if start else "later"
    if table.grid.dp == 1:
        ranks = slow_members(table, stage, slice(start, end), level)
    return Slowness(
        "compute", ranks, level, table.first_step(start), table.last_step(end),
        0.95 if len(ranks) == 1 else 0.8,
        is_one_of=table.grid.dp == 1 and len(ranks) > 1,
        place=f"stage {stage}" if len(ranks) > 1 else "",
        why=(f"against other stages its passes take {1 + level:.2f}x what they took {usual_at}",
             f"slower in {spans.num_windows[stage]} of 5 windows over {end - start} steps"),
        alternatives=(("more work on this stage since then", 0.7), ("chance", 0.3)),
    )  # fmt: skip


def _level(share: Floats, start: int, end: int) -> float:
    """By how much a stage's share is above that of just before; of one without, of just after."""
    usual_steps = share[max(0, start - NEAR) : start] if start else share[end : end + NEAR]
    inside, outside = median(share[start:end, None], 0)[0], median(usual_steps[:, None], 0)[0]
    return float(np.nan_to_num(inside / outside - 1)) if outside > 0 else 0.0


def _is_own(stage_us: Floats, start: int, end: int, level: float) -> bool:
    """Whether this stage has changed, and not the others the other way."""
    least = float(np.log1p(level)) / 2
    if start > 0:
        return _jump(stage_us, start) >= least
    return end < len(stage_us) and _jump(stage_us, end) <= -least


def _jump(stage_us: Floats, at: int) -> float:
    """By how much the logarithm of passes changes at a row, beyond its trend around it."""
    first = max(0, at - NEAR)
    near = stage_us[first : at + NEAR].astype(np.float64)
    number = np.arange(first, first + len(near)) - at
    known = near > 0
    if not (known & (number < 0)).any() or not (known & (number >= 0)).any():
        return 0.0
    terms = np.stack([np.ones(len(near)), number, number >= 0], axis=1)[known]
    return float(np.linalg.lstsq(terms, np.log(near[known]), rcond=None)[0][2])


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
        "stage_imbalance", (), level, None, None, 0.97 if has_replicas else 0.8,
        place=f"stage {worst}",
        why=(f"its passes take {1 + level:.2f}x those of other stages in all {len(excess)} steps",
             "all its replicas are alike" if has_replicas else "it has no replica"),
        alternatives=(("a slow machine since the start", 1.0),),
    )]  # fmt: skip


def _ranks(table: StepTable, stage: int) -> tuple[int, ...]:
    size = table.grid.tp * table.grid.dp
    return tuple(range(stage * size, (stage + 1) * size))
