"""Messages between the stages of one pipeline: four independent lanes, each in order.

A lane is a direction of the schedule (activations forward, gradients backward) and a direction of
rank numbers: with interleaving the last rank sends forward to the first, on the same pair of ranks
when pp is 2. Separate lanes can be plain queues on both sides, which is all that NCCL offers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from headway.trainer.comm.interface import Comm, SingleRank, Ticket

Direction = Literal["forward", "backward"]


class PipeComm:
    """The pipeline that this rank is a member of; peers are pipeline ranks."""

    def __init__(
        self,
        lanes: Mapping[tuple[Direction, bool], Comm] | None = None,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        self._lanes = dict(lanes or {})
        self.rank = rank
        self.size = size

    def send(self, direction: Direction, tensor: torch.Tensor, peer: int, tag: int) -> Ticket:
        """Send contiguous ``tensor`` in the background.

        The caller must not touch it until the ticket is done.
        """
        return self._lane(direction, peer > self.rank).send(tensor, peer, tag)

    def recv(self, direction: Direction, tensor: torch.Tensor, peer: int, tag: int) -> Ticket:
        """Post a receive; ``tensor`` holds the message when the ticket is done."""
        return self._lane(direction, self.rank > peer).recv(tensor, peer, tag)

    def comms(self) -> list[Comm]:
        """The lanes' groups, to be freed."""
        return list(self._lanes.values())

    def _lane(self, direction: Direction, upward: bool) -> Comm:
        return self._lanes.get((direction, upward)) or SingleRank()
