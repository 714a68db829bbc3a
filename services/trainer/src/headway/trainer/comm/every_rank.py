"""Reductions over all ranks without a group of all ranks: one axis of the grid after the other.

A group of all ranks would be the only one whose connections and store traffic grow with the size of
the world. After the reductions over tp, dp and pp each rank holds what all ranks contributed, and
none of them can be done before every rank has begun: they are a barrier as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from headway.common.node.group_table import NO_LINE, GroupLine
from headway.common.plan.collectives import Op as Entered
from headway.trainer.comm.interface import Comm, Op, Ticket


class EveryRank:
    """All ranks of a generation, seen from one of them.

    The result is the same on all ranks, bit for bit. The groups of an axis differ in what they
    hold, and NCCL may add in another order in each (its rings follow the topology), so an
    all-reduce of floating-point numbers promises that only within one group. Hence each axis
    gathers, which moves bits only, and every rank adds the rows in the same order. After the first
    axis all its members hold the same bits; on each later one, ranks that differ only on earlier
    axes gather equal rows in equal order, so they stay equal.

    Given the groups of some axes only, it reduces over the ranks that differ on these axes.

    Args:
        comms: this rank's group on each axis, in the order of the axes, which is the same on all
            ranks. rank, size: this rank, and the number of all ranks. line: counts the reductions.
    """

    def __init__(
        self, comms: Sequence[Comm], rank: int, size: int, line: GroupLine = NO_LINE
    ) -> None:
        self._comms = [comm for comm in comms if comm.size > 1]
        self._line = line
        self.rank = rank
        self.size = size

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Ticket:
        """Reduce small contiguous ``tensor`` in place over all ranks.

        Only ``wait`` moves it on from axis to axis: it blocks for every axis, and all ranks must
        call it at the same place in the order of their collectives.
        """
        return _OverAxes(self._comms, tensor, op, self._line)


class _OverAxes:
    def __init__(
        self, comms: Sequence[Comm], tensor: torch.Tensor, op: Op, line: GroupLine
    ) -> None:
        self._comms, self._tensor, self._op, self._line = list(comms), tensor, op, line
        self.collective = line.enter(Entered.ALL_REDUCE, tensor.nbytes)

    def done(self) -> bool:
        return not self._comms

    def wait(self) -> None:
        if self.done():
            return
        while self._comms:
            comm, flat = self._comms[0], self._tensor.view(-1)
            rows = torch.empty((comm.size, flat.numel()), dtype=flat.dtype, device=flat.device)
            comm.all_gather(rows.view(-1), flat).wait()
            flat.copy_(_fold(rows, self._op))
            del self._comms[0]
        if self._tensor.device.type == "cpu":  # else the device has yet to do it
            self._line.leave()


def _fold(rows: torch.Tensor, op: Op) -> torch.Tensor:
    """Reduce ``rows`` [n, ...] over the first dimension in halves: a fixed order on any device."""
    combine = torch.add if op == "sum" else torch.maximum
    while (num_rows := rows.shape[0]) > 1:
        half = num_rows // 2
        paired = combine(rows[:half], rows[half : 2 * half])
        rows = torch.cat([paired, rows[2 * half :]])
    return rows[0]
