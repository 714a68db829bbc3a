"""The interface of a process group to the compute path: a few calls, each returning a ticket.

The interface hides whether a call runs on a channel's thread (gloo) or on a stream (NCCL). When the
generation is fenced, every wait raises ``Aborted`` at once.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from headway.common.node.group_table import NO_LINE, GroupLine

Op = Literal["sum", "max"]


class Aborted(Exception):
    """The generation was fenced during this call; the caller must leave the step."""

    is_abort = True  # for flight records


class PeerLost(RuntimeError):
    """A transport failed or timed out, so the rank at its other end has probably failed."""


class StuckTransport(Exception):
    """A thread is inside a transport that nothing can abort; the process must be replaced."""


class Ticket(Protocol):
    """A running call. The caller must not touch its buffers until ``wait`` has returned."""

    @property
    def collective(self) -> int:
        """The call's name in flight records, 0 where none is kept."""

    def done(self) -> bool:
        """True if ``wait`` would return or raise at once. Never blocks."""

    def wait(self) -> None:
        """Block until the call is done.

        Raises:
            Aborted: the generation was fenced.
            PeerLost: the transport failed.
        """


class Reducer(Protocol):
    """Ranks that can reduce a tensor together, seen from one of them."""

    @property
    def rank(self) -> int:
        """This process's position in the group."""

    @property
    def size(self) -> int:
        """Number of members."""

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Ticket:
        """Reduce ``tensor`` in place over all members."""


class Comm(Reducer, Protocol):
    """One group of ranks, seen from one member. Calls of one Comm run in the order issued."""

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor) -> Ticket:
        """Fill flat ``out`` [size * n] with every member's flat ``shard`` [n], in rank order."""

    def reduce_scatter(self, out: torch.Tensor, flat: torch.Tensor) -> Ticket:
        """Sum flat ``flat`` [size * n] over members and leave this member's piece in ``out`` [n].

        ``flat`` may be used as scratch space; its values are undefined afterwards.
        """

    def send(self, tensor: torch.Tensor, peer: int, tag: int, line: GroupLine = NO_LINE) -> Ticket:
        """Send to group rank ``peer``; sends to one peer arrive in the order issued.

        ``line`` counts the message.
        """

    def recv(self, tensor: torch.Tensor, peer: int, tag: int, line: GroupLine = NO_LINE) -> Ticket:
        """Receive into ``tensor`` from group rank ``peer``."""


class Done:
    """The ticket of a call that is already done."""

    collective = 0

    def done(self) -> bool:
        """Always."""
        return True

    def wait(self) -> None:
        """Return at once."""


class SingleRank:
    """The group of one: every call is done when it returns."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Ticket:
        """Leave ``tensor`` as it is."""
        del tensor, op
        return Done()

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor) -> Ticket:
        """Copy unless ``shard`` is already ``out``."""
        if out.data_ptr() != shard.data_ptr():
            out.copy_(shard)
        return Done()

    def reduce_scatter(self, out: torch.Tensor, flat: torch.Tensor) -> Ticket:
        """Copy unless ``out`` is already ``flat``."""
        if out.data_ptr() != flat.data_ptr():
            out.copy_(flat)
        return Done()

    def send(self, tensor: torch.Tensor, peer: int, tag: int, line: GroupLine = NO_LINE) -> Ticket:
        """Not possible in a group of one."""
        del line
        raise AssertionError(
            f"send of {tuple(tensor.shape)} to {peer} (tag {tag}) in a group of one"
        )

    def recv(self, tensor: torch.Tensor, peer: int, tag: int, line: GroupLine = NO_LINE) -> Ticket:
        """Not possible in a group of one."""
        del line
        raise AssertionError(
            f"receive of {tuple(tensor.shape)} from {peer} (tag {tag}) in a group of one"
        )
