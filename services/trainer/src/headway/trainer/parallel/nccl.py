"""Collectives and messages over NCCL: queued on the communicator's stream, waited for by the current one.

A ticket's ``wait`` makes the current stream wait and returns at once, so the main thread blocks nowhere but
where it reads a value from the device; there it must poll (``read_when_ready``), because only ``abort``
of the communicator lets the device go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from headway.trainer.parallel.channel import Channels
from headway.trainer.parallel.comm import Op, Ticket

_dist: Any = torch.distributed  # its stubs know neither the stores nor the methods of a bare group
_OPS = {"sum": _dist.ReduceOp.SUM, "max": _dist.ReduceOp.MAX}
_POLL_S = 20e-6


class _StreamTicket:
    """Orders the current stream behind the operation. ``tensors`` stay alive until then."""

    def __init__(self, work: Any, channels: Channels, tensors: tuple[torch.Tensor, ...]) -> None:
        self._work = work
        self._channels = channels
        self._tensors = tensors

    def wait(self) -> None:
        """Let the current stream wait; raises ``Aborted`` if the generation was fenced."""
        self._channels.check()
        self._work.wait()
        self._tensors = ()


class NcclComm:
    """One NCCL communicator. Calls are carried out in the order issued, on the communicator's stream.

    One that carries messages carries them in one direction between each pair of ranks, so that its stream
    never holds a send in front of the receive that the peer waits behind.
    """

    def __init__(self, group: Any, channels: Channels, rank: int, size: int) -> None:
        self._group = group
        self._channels = channels
        self.rank = rank
        self.size = size
        channels.on_abort(group.abort)  # nothing else frees a kernel that waits for a lost peer

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Ticket:
        """Reduce contiguous ``tensor`` in place over all members."""
        options = _dist.AllreduceOptions()
        options.reduceOp = _OPS[op]
        return self._ticket(lambda: self._group.allreduce([tensor], options), tensor)

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor) -> Ticket:
        """Fill flat ``out`` with every member's flat ``shard``; the shard may be the own piece of ``out``."""
        return self._ticket(lambda: self._group._allgather_base(out, shard), out, shard)

    def reduce_scatter(self, out: torch.Tensor, flat: torch.Tensor) -> Ticket:
        """Sum ``flat`` over members and leave the own piece in ``out``."""
        return self._ticket(lambda: self._group._reduce_scatter_base(out, flat), out, flat)

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Ticket:
        """Queue a send; NCCL has no tags, so order alone matches it with its receive."""
        return self._ticket(lambda: self._group.send([tensor], peer, tag), tensor)

    def recv(self, tensor: torch.Tensor, peer: int, tag: int) -> Ticket:
        """Queue a receive into ``tensor``."""
        return self._ticket(lambda: self._group.recv([tensor], peer, tag), tensor)

    def detach(self) -> list[object]:
        """Give up the communicator; freeing what is returned aborts it, which may take a while."""
        held: list[object] = [self._group]
        del self._group
        return held

    def _ticket(self, start: Callable[[], Any], *tensors: torch.Tensor) -> Ticket:
        self._channels.check()
        return _StreamTicket(start(), self._channels, tensors)


def nccl_group(store: Any, rank: int, size: int, timeout_s: float, device: torch.device) -> Any:
    """A communicator, connected when this returns; call it on the build thread only."""
    options = _dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    group = _dist.ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(device)
    return group


def read_when_ready(tensor: torch.Tensor, channels: Channels) -> list[float]:
    """The values of a small device tensor, leaving at once when the generation is fenced.

    Raises:
        Aborted: fenced before the device got there.
    """
    if tensor.device.type == "cpu":
        return [float(value) for value in tensor.tolist()]
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    ready: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record()
    while not ready.query():
        channels.check()
        time.sleep(_POLL_S)
    return [float(value) for value in host.tolist()]
