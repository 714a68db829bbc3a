"""The lowered schedules of a run, made once per process.

A schedule of many stages and micro-batches takes seconds to lower and check, and a recovery would
pay for it again in each generation, while nobody looks at the fence. A batch-size ramp needs one
per number of micro-batches, each made at the first step of that size, by all ranks together.
"""

from __future__ import annotations

from functools import cache

from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Schedule
from headway.common.plan.schedule.generate import forward_only, generate
from headway.common.plan.schedule.lower import lower


@cache
def training_schedule(
    name: str, grid: Grid, num_micro_batches: int, *, all_read: bool = False
) -> Schedule:
    """The complete lists of a training step; ``all_read`` as in ``lower``."""
    computed = generate(name, pp=grid.pp, vp=grid.vp, num_micro_batches=num_micro_batches)
    return lower(computed, all_read=all_read)


@cache
def validation_schedule(grid: Grid, num_micro_batches: int, *, all_read: bool = False) -> Schedule:
    """The complete lists of a validation pass; ``all_read`` as in ``lower``."""
    computed = forward_only(
        pp=grid.pp, vp=grid.vp, num_micro_batches=num_micro_batches, is_v=grid.is_v
    )
    return lower(computed, all_read=all_read)
