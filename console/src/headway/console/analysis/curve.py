"""The course of a run as a few hundred points, at any number of steps; only changes are handed on.

Steps are put together in blocks of equal length, a power of two that doubles when there are too
many blocks. A block's loss and rate are means, its gradient norm the highest one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.controller.client import Step

if TYPE_CHECKING:
    from headway.console.folder.records import RunRecords

MAX_BLOCKS = 1000
"""Most blocks of a curve, as many as a chart has pixels.

Half of it is kept when the blocks are doubled.
"""
SAMPLED = 16
"""Steps read of each block when a long run is looked at for the first time."""
TIMES = 100
"""Steps that the percentiles of the step time are taken over."""
COLUMNS = ("step", "loss", "tokens_per_s", "grad_norm", "p50_s", "p99_s")

Point = tuple[float, float, float, float, float, float]
"""``COLUMNS``; nan where nothing was finite."""


@dataclass
class _Block:
    index: int
    step: int = -1
    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    spent_s: float = 0.0
    grad_norm: float = math.nan
    p50_s: float = math.nan
    p99_s: float = math.nan

    def add(self, step: Step) -> None:
        self.step = step.step
        if step.loss is not None and math.isfinite(step.loss):
            self.losses.append(step.loss)
        if step.grad_norm is not None and math.isfinite(step.grad_norm):
            # max keeps its first argument when it compares with nan
            self.grad_norm = max(step.grad_norm, self.grad_norm)
        self.tokens += step.tokens
        self.spent_s += step.duration_s

    def merge(self, other: _Block) -> None:
        self.step = other.step
        self.losses += other.losses
        self.tokens += other.tokens
        self.spent_s += other.spent_s
        self.grad_norm = max(other.grad_norm, self.grad_norm)
        self.p50_s, self.p99_s = other.p50_s, max(self.p99_s, other.p99_s)

    def close(self) -> None:
        """Forget all losses but their mean."""
        self.losses = [sum(self.losses) / len(self.losses)] if self.losses else []

    def point(self) -> Point:
        loss = sum(self.losses) / len(self.losses) if self.losses else math.nan
        rate = self.tokens / self.spent_s if self.spent_s > 0 else math.nan
        return self.step, loss, rate, self.grad_norm, self.p50_s, self.p99_s


class Curve:
    """``add`` steps as they come, then take ``changes``. One thread only."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._length = 1
        self._times: deque[float] = deque(maxlen=TIMES)
        self._generation = -1
        self._unchanged = 0

    def load(self, run: RunRecords) -> None:
        """Begin with what ``run`` has done so far: every step, or some of each block."""
        completed = run.records.completed_steps()
        if completed is None:
            return
        self._length = 1 << max(0, math.ceil(math.log2(completed / MAX_BLOCKS)))
        self.add(run.records.course_spans(_sampled(completed, self._length)))

    def add(self, steps: Iterable[Step]) -> None:
        """Append steps in order. A step of a newer generation replaces all from that step on."""
        for step in steps:
            if step.is_superseded:
                continue  # it was stored late
            if self._blocks and step.step <= self._blocks[-1].step:
                if step.generation <= self._generation:
                    continue  # read before
                self._supersede(step.step)
            self._generation = step.generation
            self._add(step)
        while len(self._blocks) > MAX_BLOCKS:
            self._double()

    def changes(self) -> tuple[int, list[Point]]:
        """How many points of before still hold, and those that follow them now."""
        self._measure()
        kept = min(self._unchanged, len(self._blocks))
        points = [block.point() for block in self._blocks[kept:]]
        self._unchanged = max(0, len(self._blocks) - 1)  # the last block may still grow
        return kept, points

    def points(self) -> list[Point]:
        """All of it."""
        return [block.point() for block in self._blocks]

    def _add(self, step: Step) -> None:
        index = step.step // self._length
        if not self._blocks or self._blocks[-1].index != index:
            self._measure()
            if self._blocks:
                self._blocks[-1].close()
            self._blocks.append(_Block(index))
        self._blocks[-1].add(step)
        self._times.append(step.duration_s)
        self._unchanged = min(self._unchanged, len(self._blocks) - 1)

    def _measure(self) -> None:
        """Percentiles of the newest step times, for the newest block."""
        if self._blocks and self._times:
            ordered = sorted(self._times)
            block = self._blocks[-1]
            block.p50_s = ordered[len(ordered) // 2]
            block.p99_s = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]

    def _supersede(self, step: int) -> None:
        first = step // self._length
        while self._blocks and self._blocks[-1].index >= first:
            self._blocks.pop()
        self._unchanged = min(self._unchanged, len(self._blocks))

    def _double(self) -> None:
        self._length *= 2
        merged: list[_Block] = []
        for block in self._blocks:
            block.index //= 2
            if merged and merged[-1].index == block.index:
                merged[-1].merge(block)
                merged[-1].close()
            else:
                merged.append(block)
        self._blocks, self._unchanged = merged, 0


def _sampled(completed: int, length: int) -> list[tuple[int, int]]:
    """First and last of the steps to read of each block, the oldest first."""
    stops = [min(start + length, completed) for start in range(0, completed, length)]
    return [(max(stop - SAMPLED, (stop - 1) // length * length), stop - 1) for stop in stops]
