"""Short slowdowns: how much slower ranks are now and then although nothing is wrong.

On a busy machine one rank after the other is slow for some steps. What lasts differs from that only
by being larger, so the largest excess over a few steps that came and went is kept, by what it was
measured by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
from headway.common.plan.grid import Grid
from headway.common.wire.messages.health import Cause
from headway.health.slowness.findings import Slowness
from headway.health.slowness.parts import PARTS, Parts, parts_of
from headway.health.slowness.peers import median
from headway.health.slowness.spans import MOST
from headway.health.slowness.stages import relative_times
from headway.health.slowness.steps import Floats, StepTable
from headway.health.slowness.stragglers import CAUSES
from headway.health.slowness.transfers import excess_of_transfers

Measure = tuple[Cause, bool]
"""A cause, and whether it is that of a stage, which is held against its own earlier time."""
BLOCK, LONG = 8, 16
"""Steps over which an excess is averaged, and over which for what has lasted at least as long:
slowdowns of a few steps hardly show in the mean of many."""
ABOVE_SHORT, ABOVE_LONG = 1.5, 1.25
"""How many times as large as the largest slowdown over so many steps is what is no such one."""
LAG = 16
"""Steps after which it has turned out whether it lasts."""
OLDEST = LAG + 2 * BLOCK
"""Steps back that the next block may begin."""
NUM_BLOCKS = 128
ENOUGH = 8
"""Blocks after which the short slowdowns of these machines are known."""
MANY_REPLICAS = 3
"""Replicas."""
UNKNOWN = 0.3
"""What is taken for a short slowdown before the first block, and less with each: as on two cores
with 23 processes that wanted to run."""


@dataclass(slots=True)
class PassingExcess:
    """The largest excess of any rank in each of the newest blocks of steps."""

    _blocks: dict[Measure, deque[float]] = field(default_factory=dict)
    _long: dict[Measure, deque[float]] = field(default_factory=dict)
    _noted_step: int = -1
    _num_blocks: int = 0

    def above(self, one: Slowness, grid: Grid, num_steps: int) -> float:
        """The excess that no short slowdown of the same cause reaches, as a share of the passes.

        A stage is held against what it was before, from which it may drift for as long.

        Args:
            num_steps: over which ``one`` has lasted.
        """
        cause, is_of_stage = _measure(one, grid)
        is_long = num_steps >= LONG and not is_of_stage
        blocks, times = (self._long, ABOVE_LONG) if is_long else (self._blocks, ABOVE_SHORT)
        # what ranks do by themselves moves their stages as well
        known = [blocks.get((cause, kind), ()) for kind in {False, is_of_stage}]
        unknown = UNKNOWN * (1 - self._num_blocks / ENOUGH)
        return times * max(unknown, *map(_usual_most, known))

    def begin(self) -> None:
        """Begin a generation: the machines are the same, but its steps are counted anew."""
        self._noted_step = -1

    def passed(self, one: Slowness, grid: Grid) -> None:
        """Something that seemed to last has not."""
        for blocks in (self._blocks, self._long):
            _add(blocks, _measure(one, grid), min(one.excess, MOST))

    def note(self, table: StepTable, lasting: Collection[Slowness]) -> None:
        """Take in the next block that is old enough, without the ranks of which something lasts."""
        end = len(table.steps) - LAG
        if end < BLOCK or table.steps[end - BLOCK] <= self._noted_step:
            return
        self._noted_step = int(table.steps[end - 1])
        self._num_blocks += 1
        parts = parts_of(table)
        for blocks, length in ((self._blocks, BLOCK), (self._long, LONG)):
            at = slice(max(0, end - length), end)
            for measure, excess in _measures(table, parts, lasting, at):
                _add(blocks, measure, excess)


def _add(blocks: dict[Measure, deque[float]], measure: Measure, excess: float) -> None:
    blocks.setdefault(measure, deque(maxlen=NUM_BLOCKS)).append(excess)


def _measure(one: Slowness, grid: Grid) -> Measure:
    is_of_stage = grid.dp == 1 or len(one.ranks) > grid.tp
    return one.cause, one.cause == "compute" and is_of_stage


def _measures(
    table: StepTable, parts: Parts, lasting: Collection[Slowness], block: slice
) -> Iterator[tuple[Measure, float]]:
    """The largest of each excess that is judged, over a block of steps."""
    for part in PARTS:
        flat = parts.excess[part][block]
        flat = flat.reshape(len(flat), -1)
        yield (CAUSES[part], False), _largest(_without(lasting, flat, table.grid))
    # one of many replicas does not move the median of its stage
    is_of_stage = any(
        table.grid.dp < MANY_REPLICAS or len(one.ranks) > table.grid.tp for one in lasting
    )
    newest = slice(block.stop - BLOCK, block.stop)
    before = slice(newest.start - BLOCK, newest.start)
    if before.start >= 0 and not is_of_stage:
        times = relative_times(table, parts)
        earlier = median(times[before], 0)
        change = median(times[newest], 0) / np.where(earlier > 0, earlier, np.float32(np.nan)) - 1
        yield ("compute", True), _largest(change[None].astype(np.float32))
    transfers = excess_of_transfers(table, parts)
    if transfers is not None and all(one.cause != "network" for one in lasting):
        yield ("network", False), _largest(transfers[block])


def _without(lasting: Collection[Slowness], excess: Floats, grid: Grid) -> Floats:
    """Without the columns, each of as many ranks, of groups in which something lasts.

    Passes of all members of a tensor-parallel group take equally long.
    """
    groups = {rank // grid.tp for one in lasting for rank in one.ranks}
    ranks = [group * grid.tp + place for group in groups for place in range(grid.tp)]
    is_out = np.zeros(excess.shape[1], np.bool_)
    is_out[np.array(ranks, np.int64) * excess.shape[1] // grid.world_size] = True
    return np.where(is_out, np.float32(np.nan), excess)


def _usual_most(blocks: Collection[float]) -> float:
    """The largest but one of many, as the largest may have been a fault that has passed."""
    return sorted(blocks)[-2] if len(blocks) > ENOUGH else max(blocks, default=0.0)


def _largest(excess: Floats) -> float:
    """The largest mean over the block; of one very long step no more than is judged."""
    known = ~np.isnan(excess)
    sums = np.where(known, np.minimum(excess, MOST), 0).sum(0)
    means = sums / np.maximum(known.sum(0), 1)
    return max(0.0, float(means.max(initial=0.0)))
