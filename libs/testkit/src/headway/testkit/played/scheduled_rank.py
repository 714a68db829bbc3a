"""A rank that trains nothing and writes the flight records of a real schedule, at made-up times.

The lists are those of ``plan.schedule``, the groups those of ``plan.collectives``. Durations are
drawn with a spread like that of a GPU, so that files of the records compress as real ones do.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from headway.common.node import flight
from headway.common.node.flight import FlightWriter
from headway.common.node.flight_record import ON_DEVICE, WAITING
from headway.common.node.group_table import NO_LINE, GroupLine
from headway.common.plan.collectives import LANES, GroupKind, Op, memberships
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import COMPUTE, RECEIVES, SENDS, Action, Kind
from headway.common.plan.schedule.generate import generate
from headway.common.plan.schedule.lower import lower

GRID_175B = Grid(tp=8, pp=8, dp=2, vp=6)
MICRO_BATCHES_175B = 64
"""Micro-batches per step of MegaScale's 175B model (arXiv 2402.15627, table 2: pp 8, vp 6)."""
TP_PER_PASS = 2 * 2
"""Collectives of tensor parallelism in one pass over two layers, gather and scatter."""
_NS = {Kind.FORWARD: 9e6, Kind.BACKWARD: 18e6, Kind.OPTIMIZER: 40e6, Kind.DATA: 2e6}
_OTHER_NS = 300e3
_LAUNCH_NS = 40e3


class ScheduledRank:
    """Writes one step after the other into the ring at ``path``, as fast as it can."""

    def __init__(
        self,
        path: Path,
        rank: int,
        grid: Grid = GRID_175B,
        num_micro_batches: int = MICRO_BATCHES_175B,
        *,
        on_device: bool = True,
        capacity: int = 65536,
    ) -> None:
        self.grid, self.rank, self._on_device = grid, rank, on_device
        self._chance = random.Random(rank)
        self.now_ns = time.monotonic_ns()
        self.writer = FlightWriter.create(path, rank, capacity)
        self.writer.set_generation(0)
        self._lines = self.writer.table.begin(0, memberships(grid, rank))
        name = "interleaved" if grid.vp > 1 else "1f1b"
        schedule = generate(name, pp=grid.pp, vp=grid.vp, num_micro_batches=num_micro_batches)
        self._actions = lower(schedule).ranks[grid.coordinates(rank).pp]

    def step(self, step: int, *, with_tp: bool = False) -> None:
        """One step; ``with_tp`` also records each collective of tensor parallelism."""
        clock = SimpleNamespace(monotonic_ns=lambda: self.now_ns)
        with patch.object(flight, "time", clock), self.writer.record(Kind.STEP, step=step):
            for action in self._actions:
                self._act(action, step, with_tp=with_tp)
                self.now_ns += int(self._chance.gammavariate(2, 4e3))

    def close(self) -> None:
        """Release the ring."""
        self.writer.close()

    def _act(self, action: Action, step: int, *, with_tp: bool) -> None:
        kind = action.kind
        if kind is Kind.NORM:
            every = self._line(GroupKind.EVERY_RANK)
            for sums in (Kind.SUMS, Kind.AGREEMENT):
                self._record(Action(sums), step, WAITING, every, Op.ALL_REDUCE, 24)
        elif kind in SENDS:
            line = self._lane(kind, is_receiver=False)
            self._record(action, step, 0, line, Op.SEND, 100 << 20)
            return
        elif kind in RECEIVES:
            line = self._lane(kind, is_receiver=True)
            self._record(action, step, WAITING, line, Op.RECV, 100 << 20)
            return
        elif kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
            line, op = self._line(GroupKind.DP), Op[kind.name]
            collective = self._record(action, step, 0, line, op, 1 << 30)
            self._record(action, step, WAITING, NO_LINE, op, 0, collective)
            return
        if with_tp and kind in COMPUTE:
            for _ in range(TP_PER_PASS):
                line = self._line(GroupKind.TP)
                waits = Action(Kind.TENSOR_PARALLEL, action.chunk, action.micro_batch)
                self._record(waits, step, WAITING, line, Op.ALL_GATHER, 50 << 20)
        self._record(action, step, 0, NO_LINE, Op.ALL_REDUCE, 0)

    def _record(
        self,
        action: Action,
        step: int,
        flags: int,
        line: GroupLine,
        op: Op,
        nbytes: int,
        collective: int = 0,
    ) -> int:
        collective = collective or line.enter(op, nbytes)
        sequence = self.writer.begin(
            int(action.kind),
            step,
            action.micro_batch,
            action.chunk,
            action.peer,
            nbytes,
            flags | (ON_DEVICE if self._on_device else 0),
            collective,
        )
        usual_ns, launched_ns = _NS.get(action.kind, _OTHER_NS), self.now_ns
        spent_ns = int(usual_ns * self._chance.lognormvariate(0, 0.05))
        self.now_ns += int(_LAUNCH_NS * self._chance.lognormvariate(0, 0.2))
        if not self._on_device:
            self.now_ns = launched_ns + spent_ns
        self.writer.end(sequence)
        if self._on_device:
            began_ns = launched_ns + int(self._chance.gammavariate(2, 500e3))
            self.writer.correct(sequence, began_ns, began_ns + spent_ns)
            self.now_ns = max(self.now_ns, launched_ns + spent_ns)
        line.leave()
        return collective

    def _line(self, kind: GroupKind, *, is_receiver: bool = False) -> GroupLine:
        return self._lines.get(2 * kind + is_receiver, NO_LINE)

    def _lane(self, kind: Kind, *, is_receiver: bool) -> GroupLine:
        is_forward = kind in (Kind.SEND_FORWARD, Kind.RECV_FORWARD)
        wraps = self._wraps(is_forward=is_forward, is_receiver=is_receiver)
        lane = LANES["forward" if is_forward else "backward", is_forward != wraps]
        return self._line(lane, is_receiver=is_receiver)

    def _wraps(self, *, is_forward: bool, is_receiver: bool) -> bool:
        """Whether the message goes around the end of the pipeline."""
        place, last = self.grid.coordinates(self.rank).pp, self.grid.pp - 1
        return place == (last if is_forward != is_receiver else 0)
