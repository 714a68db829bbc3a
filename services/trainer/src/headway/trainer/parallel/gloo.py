"""Collectives and messages over gloo: every blocking call on a channel's thread, never on the main thread.

Process-group objects are used directly, without torch's global registry: no names, no counters that must
agree, and a half-built generation is simply dropped.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from headway.trainer.parallel.channel import Channels
from headway.trainer.parallel.comm import Op, Ticket

_dist: Any = torch.distributed  # its stubs know neither the stores nor the methods of a bare group
_OPS = {"sum": _dist.ReduceOp.SUM, "max": _dist.ReduceOp.MAX}


class GlooComm:
    """One gloo group. Calls of one instance are carried out in the order issued, on the channel ``name``.

    Two instances may share a group if one of them only sends and receives.
    """

    def __init__(self, group: Any, channels: Channels, name: str) -> None:
        self._group = group
        self._channels = channels
        self._name = name
        self.rank = group.rank()
        self.size = group.size()

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Ticket:
        """Reduce contiguous ``tensor`` in place over all members."""
        group, reduce_op = self._group, _OPS[op]
        return self._channels.open(self._name).launch(lambda: group.allreduce([tensor], reduce_op))

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor) -> Ticket:
        """Fill flat ``out`` with every member's flat ``shard``; the shard may be the own piece of ``out``."""
        group = self._group
        return self._channels.open(self._name).launch(lambda: group._allgather_base(out, shard))

    def reduce_scatter(self, out: torch.Tensor, flat: torch.Tensor) -> Ticket:
        """Sum ``flat`` over members and keep the own piece in ``out``.

        gloo's reduce_scatter takes about twice as long as its all_reduce and copies in the caller, so this is
        an all_reduce whose other pieces nobody reads.
        """
        own = flat.view(self.size, -1)[self.rank]
        group = self._group

        def run() -> None:
            group.allreduce([flat]).wait()
            if out.data_ptr() != own.data_ptr():
                out.copy_(own)

        return self._channels.open(self._name).call(run)

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Ticket:
        """Send contiguous ``tensor``; done when the receiver has posted its receive and the bytes are out."""
        group = self._group
        return self._channels.open(f"{self._name}-send").launch(lambda: group.send([tensor], peer, tag))

    def recv(self, tensor: torch.Tensor, peer: int, tag: int) -> Ticket:
        """Post a receive into contiguous ``tensor``."""
        group = self._group
        return self._channels.open(f"{self._name}-recv").launch(lambda: group.recv([tensor], peer, tag))

    def detach(self) -> list[object]:
        """Give up the group; the caller frees what is returned, which may take a gloo timeout."""
        held: list[object] = [self._group]
        del self._group
        return held


def gloo_options(host: str, timeout_s: float) -> Any:
    """Options whose one device listens on ``host`` only; groups that share them share one event thread."""
    options = _dist.ProcessGroupGloo._Options()
    options._devices = [_dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=timeout_s)
    options._threads = 1  # a channel starts collectives one after the other anyway
    return options
