"""Messages between the stages of one pipeline: four independent lanes, each in order.

A lane is a direction of the schedule (activations forward, gradients backward) and a direction of
rank numbers: with interleaving the last rank sends forward to the first, on the same pair of ranks
when pp is 2, and in a V each rank sends forward to both neighbours. Separate lanes can be plain
queues on both sides, which is all that NCCL offers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from headway.common.node.group_table import NO_LINE, GroupLine
from headway.common.plan.collectives import LANES, GroupKind
from headway.common.plan.stage_map import StageMap
from headway.trainer.comm.interface import Comm, SingleRank, Ticket

Direction = Literal["forward", "backward"]


class PipeComm:
    """The pipeline that this rank is a member of; peers are pipeline ranks.

    ``lines`` count the messages: a line for what is sent and one for what is received, by the
    numbers of ``plan.collectives``. ``is_v``: chunks are placed in a V; see ``StageMap``.
    """

    def __init__(
        self,
        lanes: Mapping[tuple[Direction, bool], Comm] | None = None,
        rank: int = 0,
        size: int = 1,
        lines: Mapping[int, GroupLine] | None = None,
        *,
        is_v: bool = False,
    ) -> None:
        self._lanes, self._lines = dict(lanes or {}), lines or {}
        self.rank = rank
        self.size = size
        self.stage_map = StageMap(size, is_v)
        """Which virtual stage each chunk of a rank is."""

    def send(
        self,
        direction: Direction,
        tensor: torch.Tensor,
        peer: int,
        tag: int,
        kind: GroupKind | None = None,
    ) -> Ticket:
        """Send contiguous ``tensor`` in the background.

        The caller must not touch it until the ticket is done. ``kind``: what it is counted as, by
        default what its lane is for.
        """
        upward = peer > self.rank
        comm, member = self._way(direction, upward, peer)
        line = self._lines.get(2 * (kind or LANES[direction, upward]), NO_LINE)
        return comm.send(tensor, member, tag, line)

    def recv(
        self,
        direction: Direction,
        tensor: torch.Tensor,
        peer: int,
        tag: int,
        kind: GroupKind | None = None,
    ) -> Ticket:
        """Post a receive; ``tensor`` holds the message when the ticket is done."""
        upward = self.rank > peer
        comm, member = self._way(direction, upward, peer)
        line = self._lines.get(2 * (kind or LANES[direction, upward]) + 1, NO_LINE)
        return comm.recv(tensor, member, tag, line)

    def comms(self) -> list[Comm]:
        """The lanes' groups, to be freed."""
        return list(self._lanes.values())

    def _way(self, direction: Direction, upward: bool, peer: int) -> tuple[Comm, int]:
        """The lane's group, and the peer's rank in it."""
        return self._lanes.get((direction, upward)) or SingleRank(), peer
