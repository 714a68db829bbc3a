"""Collectives and messages over gloo; blocking calls never run on the caller's thread.

Process-group objects are used directly, without torch's global registry: there are no names or
counters that must agree, and a half-built generation can be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from headway.common.node.group_table import NO_LINE, GroupLine
from headway.common.plan.collectives import Op as Entered
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.interface import Op, Ticket

_dist: Any = torch.distributed  # its stubs lack the stores and the methods of a bare group
EXCHANGE_BYTES = 16 << 20
"""Up to this size members exchange pieces: two ranks need 0.7 of an all_reduce's time."""
_OPS = {"sum": _dist.ReduceOp.SUM, "max": _dist.ReduceOp.MAX}


class GlooComm:
    """One gloo group.

    Collectives run in the order issued, on the group's only thread; messages on two channels named
    after ``name``. Instances may share a group if at most one does collectives. ``line`` counts
    the collectives.
    """

    def __init__(
        self, group: Any, channels: Channels, name: str, line: GroupLine = NO_LINE
    ) -> None:
        self._group, self._line = group, line
        self._limit_s: float | None = None
        self._channels = channels
        self._name = name
        self.rank = group.rank()
        self.size = group.size()

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Ticket:
        """Reduce contiguous ``tensor`` in place over all members."""
        return self._reduce(tensor, op, Entered.ALL_REDUCE)

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor) -> Ticket:
        """Fill flat ``out`` with every member's flat ``shard``.

        The shard may be this rank's piece of ``out``.
        """
        group, line = self._group, self._line
        entered = line.enter(Entered.ALL_GATHER, out.nbytes)
        return self._channels.watch(lambda: group._allgather_base(out, shard), line, entered)

    def reduce_scatter(self, out: torch.Tensor, flat: torch.Tensor) -> Ticket:
        """Sum ``flat`` over members and keep the own piece in ``out``.

        gloo's reduce_scatter takes about twice as long as its all_reduce and copies in the caller.
        So members exchange pieces and each adds its own up, in the order of ranks; with large
        tensors, whose pieces would need fresh memory, it is an all_reduce whose other pieces are
        ignored.
        """
        own = flat.view(self.size, -1)[self.rank]
        if flat.nbytes <= EXCHANGE_BYTES:
            return self._exchange(out, flat)
        reduced = self._reduce(flat, "sum", Entered.REDUCE_SCATTER)
        return reduced if out.data_ptr() == own.data_ptr() else _After(reduced, out, [own])

    def _exchange(self, out: torch.Tensor, flat: torch.Tensor) -> Ticket:
        group, line, arriving = self._group, self._line, torch.empty_like(flat)
        entered = line.enter(Entered.REDUCE_SCATTER, flat.nbytes)
        sent = self._channels.watch(
            lambda: group.alltoall_base(arriving, flat, [], []), line, entered
        )
        return _After(sent, out, arriving.view(self.size, -1).unbind(), keeps=flat)

    def _reduce(self, tensor: torch.Tensor, op: Op, entered_as: Entered) -> Ticket:
        group, line, reduce_op = self._group, self._line, _OPS[op]
        entered = line.enter(entered_as, tensor.nbytes)
        return self._channels.watch(lambda: group.allreduce([tensor], reduce_op), line, entered)

    def send(self, tensor: torch.Tensor, peer: int, tag: int, line: GroupLine = NO_LINE) -> Ticket:
        """Send contiguous ``tensor``.

        The ticket is done when the receiver has posted its receive and the bytes are out.
        """
        group, entered = self._group, line.enter(Entered.SEND, tensor.nbytes)
        return self._channels.open(f"{self._name}-send").launch(
            lambda: _Limited(group.send([tensor], peer, tag), self), line, entered
        )

    def recv(self, tensor: torch.Tensor, peer: int, tag: int, line: GroupLine = NO_LINE) -> Ticket:
        """Post a receive into contiguous ``tensor``."""
        group, entered = self._group, line.enter(Entered.RECV, tensor.nbytes)
        return self._channels.open(f"{self._name}-recv").launch(
            lambda: _Limited(group.recv([tensor], peer, tag), self), line, entered
        )

    @property
    def limit_s(self) -> float | None:
        """Longest wait for a message; None: the group's own timeout."""
        return self._limit_s

    def limit(self, limit_s: float) -> None:
        """From now on no operation may take longer; those under way keep their limit."""
        self._limit_s = limit_s
        self._group.set_timeout(timedelta(seconds=limit_s))

    def detach(self) -> list[object]:
        """Release the group; the caller frees what is returned, which may take a gloo timeout."""
        held: list[object] = [self._group]
        del self._group
        return held


class _Limited:
    """A message under way.

    gloo takes the limit of a collective when it starts, and that of a message when it is waited
    for.
    """

    def __init__(self, work: Any, comm: GlooComm) -> None:
        self._work, self._comm = work, comm

    def wait(self) -> object:
        """Block until it is done; raises RuntimeError at the limit."""
        limit_s = self._comm.limit_s
        return self._work.wait(*([] if limit_s is None else [timedelta(seconds=limit_s)]))


class _After:
    """Adds up what another ticket's call made, when it is waited for."""

    def __init__(
        self,
        ticket: Ticket,
        out: torch.Tensor,
        pieces: Sequence[torch.Tensor],
        keeps: torch.Tensor | None = None,
    ) -> None:
        self._ticket, self._out, self._pieces, self._keeps = ticket, out, pieces, keeps
        self.collective = ticket.collective

    def done(self) -> bool:
        """The other ticket's call is done."""
        return self._ticket.done()

    def wait(self) -> None:
        """Wait, then add; a second wait does the same again."""
        self._ticket.wait()
        first, *others = self._pieces
        if others:
            torch.add(first, others.pop(0), out=self._out)
        else:
            self._out.copy_(first)
        for piece in others:
            self._out.add_(piece)
        self._keeps = None


def gloo_options(host: str, timeout_s: float) -> Any:
    """Return options with one device that listens on ``host`` only.

    Groups that share the options share the thread of the device.
    """
    options = _dist.ProcessGroupGloo._Options()
    options._devices = [_dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=timeout_s)
    options._threads = 1  # so that collectives are carried out one after the other
    return options
