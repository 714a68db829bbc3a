"""Collectives and messages over NCCL, queued on the communicator's stream.

A ticket's ``wait`` makes the current stream wait and returns at once, so the main thread blocks
only where it reads a value from the device; there it must poll (``read_when_ready``), because only
``abort`` of the communicator lets the device continue.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from headway.common.log import get_logger
from headway.common.node.group_table import NO_LINE, GroupLine
from headway.common.plan.collectives import Op as Entered
from headway.common.wire.addresses import interface_of
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.ctas import Ctas
from headway.trainer.comm.interface import Comm, Op, StuckTransport, Ticket
from headway.trainer.comm.p2p import Direction, PipeComm
from headway.trainer.device.choose import set_environment

_dist: Any = torch.distributed  # its stubs lack the stores and the methods of a bare group
_OPS = {"sum": _dist.ReduceOp.SUM, "max": _dist.ReduceOp.MAX}
_POLL_S = 20e-6
NO_LIMIT = timedelta(days=365)
"""Time that torch allows an operation. Whether one is late is judged by the monitor and the driver,
which can end it: torch's watchdog cannot. It counts from when an operation was queued, which for a
receive is early, and for each one that it finds late it sleeps (``device.ENVIRONMENT``) with the
lock that queueing the next collective takes, whatever the mode of its error handling
(ProcessGroupNCCL.cpp, ``Watchdog::runLoop``)."""
SETTLE_S = 10.0
"""Longest wait for a device whose communicators were aborted."""

log = get_logger("nccl")


class _StreamTicket:
    """Orders the current stream behind the operation. ``tensors`` stay alive until then."""

    def __init__(
        self, work: Any, channels: Channels, tensors: tuple[torch.Tensor, ...], collective: int
    ) -> None:
        self._work = work
        self._channels = channels
        self._tensors = tensors
        self.collective = collective

    def done(self) -> bool:
        """Whether the device has finished the operation; queries the driver, never waits."""
        return bool(self._work.is_completed())

    def wait(self) -> None:
        """Let the current stream wait; raises ``Aborted`` if the generation was fenced."""
        self._channels.check()
        self._work.wait()
        self._tensors = ()


class NcclComm:
    """One NCCL communicator. Calls run in the order issued, on the communicator's stream.

    ``line`` counts the collectives that are entered. Which of them are done shows where the device
    has passed a wait for one (``DeviceRecorder``). To ask torch's works for it would be unsafe: it
    takes the lock that an abort holds, and with the interpreter's.
    """

    def __init__(
        self,
        group: Any,
        channels: Channels,
        rank: int,
        size: int,
        line: GroupLine = NO_LINE,
    ) -> None:
        self._group, self._line = group, line
        self._channels = channels
        self.rank = rank
        self.size = size

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Ticket:
        """Reduce contiguous ``tensor`` in place over all members."""
        options = _dist.AllreduceOptions()
        options.reduceOp = _OPS[op]
        start = lambda: self._group.allreduce([tensor], options)  # noqa: E731
        return self._ticket(start, self._line, Entered.ALL_REDUCE, tensor)

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor) -> Ticket:
        """Fill flat ``out`` with every member's flat ``shard``.

        The shard may be this rank's piece of ``out``.
        """
        start = lambda: self._group._allgather_base(out, shard)  # noqa: E731
        return self._ticket(start, self._line, Entered.ALL_GATHER, out, shard)

    def reduce_scatter(self, out: torch.Tensor, flat: torch.Tensor) -> Ticket:
        """Sum ``flat`` over members and leave the own piece in ``out``."""
        start = lambda: self._group._reduce_scatter_base(out, flat)  # noqa: E731
        return self._ticket(start, self._line, Entered.REDUCE_SCATTER, flat, out)

    def send(self, tensor: torch.Tensor, peer: int, tag: int, line: GroupLine = NO_LINE) -> Ticket:
        """Queue a send; NCCL has no tags, so order alone matches it with its receive."""
        start = lambda: self._group.send([tensor], peer, tag)  # noqa: E731
        return self._ticket(start, line, Entered.SEND, tensor)

    def recv(self, tensor: torch.Tensor, peer: int, tag: int, line: GroupLine = NO_LINE) -> Ticket:
        """Queue a receive into ``tensor``."""
        start = lambda: self._group.recv([tensor], peer, tag)  # noqa: E731
        return self._ticket(start, line, Entered.RECV, tensor)

    def detach(self) -> list[object]:
        """Release the communicator; freeing what is returned aborts it, which may take a while."""
        held: list[object] = [self._group]
        del self._group
        return held

    def _ticket(
        self, start: Callable[[], Any], line: GroupLine, op: Entered, *tensors: torch.Tensor
    ) -> Ticket:
        """The first of ``tensors`` is the whole one."""
        self._channels.check()
        entered = line.enter(op, tensors[0].nbytes)
        return _StreamTicket(start(), self._channels, tensors, entered)


class NcclPipe(PipeComm):
    """A pipeline over NCCL: each lane has a communicator of two for each pair of neighbours.

    A connected communicator processes its messages one after the other, whatever their peers. If a
    lane were one communicator, a rank's send to the next stage would wait behind the receives that
    it posted ahead from the previous one. A pair's communicator carries messages of one direction
    only, so both ends issue the same messages in the same order.

    Args:
        pairs: the communicator by lane (see ``PipeComm``) and peer; the lower pipeline rank is its
        rank 0. rank, size: this rank's place in the pipeline, and the number of its ranks.
        lines: count the messages. is_v: as in ``PipeComm``.
    """

    def __init__(
        self,
        pairs: Mapping[tuple[Direction, bool, int], Comm],
        rank: int,
        size: int,
        lines: Mapping[int, GroupLine] | None = None,
        *,
        is_v: bool = False,
    ) -> None:
        super().__init__({}, rank, size, lines, is_v=is_v)
        self._pairs = dict(pairs)

    def comms(self) -> list[Comm]:
        """The pairs' groups, to be freed."""
        return list(self._pairs.values())

    def _way(self, direction: Direction, upward: bool, peer: int) -> tuple[Comm, int]:
        return self._pairs[direction, upward, peer], int(peer > self.rank)


class JointAbort:
    """The NCCL groups of one generation, which end together.

    Only an abort frees a kernel that waits for a lost peer, and the abort of one communicator can
    wait for the kernel of another (pytorch issue 119797). So all are aborted at the same time,
    each on its own thread. torch's single NCCL group call has no effect, because NCCL counts group
    calls by thread and torch's ``abort`` uses another thread. Groups that are freed without an
    abort are aborted then.
    """

    def __init__(self) -> None:
        self._groups: list[Any] = []

    def add(self, group: Any) -> None:
        """Have ``group`` aborted together with the others.

        A group added after the abort is aborted when this object is freed.
        """
        self._groups.append(group)

    def abort(self) -> None:
        """Begin to abort all groups; never blocks, may be repeated.

        A group that fails is logged.
        """
        groups, self._groups = self._groups, []
        for group in groups:
            # not a daemon, since an interpreter that exits during this would abort the process
            threading.Thread(target=_abort, args=(group,), name="nccl-abort", daemon=False).start()

    def __del__(self) -> None:
        self.abort()


def _abort(group: Any) -> None:
    try:
        group.abort()
    except Exception as error:
        log.error("a communicator was not aborted", error=repr(error))


def nccl_group(
    store: Any,
    rank: int,
    size: int,
    device: torch.device,
    *,
    ctas: Ctas = Ctas(),  # noqa: B008 - frozen
    is_pair: bool = False,
) -> Any:
    """A communicator, connected when this returns; call it on the build thread only.

    ``store`` is a prefix of the generation's store, for this group only. Ranks of a group
    cannot share a device. ``is_pair``: of two stages of a pipeline, see ``Ctas``.

    Its stream has high priority: when an SM becomes free, a waiting kernel of the communicator
    takes it before the next wave of a matrix product does.

    NCCL connects in blocking mode, which nothing can abort: if a member is lost meanwhile, the
    thread may stay inside, and ``build`` gives the process up. The non-blocking mode is no way out
    as long as torch cannot wait for it: through ``eager_connect_single_device`` the first
    collective may meet a communicator that is not ready (torchft pull request 320), and NCCL 2.26
    hung in it (pytorch issue 153960), so torch itself turned it off again in 2.7.1.
    """
    set_environment()  # torch reads it for each group
    options = _dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = NO_LIMIT
    options.config.blocking = 1
    ctas.put_into(options.config, is_pair=is_pair)
    group = _dist.ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(device)
    return group


def connect_pair(pair: Comm, device: torch.device, *, sends: bool) -> None:
    """Pass one element from the rank of ``pair`` that ``sends`` to the other; both must call it.

    NCCL connects two ranks when the first message between them is queued, and the host waits in
    that call for the other rank to queue its end (seen with NCCL 2.28: two ranks that each post a
    receive ahead of their first send never return). Later messages are queued without a wait.
    """
    element, peer = torch.zeros(1, device=device), 1 - pair.rank
    queue = pair.send if sends else pair.recv
    queue(element, peer, 0).wait()


def use_interface(address: str) -> None:
    """Have NCCL connect through the interface of this machine that has ``address``.

    A user's own choice wins. NCCL reads it when the process makes its first communicator.
    """
    if name := interface_of(address):
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # "=": this very name


def settle(device: torch.device) -> None:
    """Wait until nothing runs on the device any more.

    After an abort it may still end kernels, and the allocator would give their memory to others.

    Raises:
        StuckTransport: something runs on.
    """
    if device.type == "cpu":
        return
    # an event would wait for one stream, and NCCL and the snapshots have streams of their own
    waiting = threading.Thread(target=torch.cuda.synchronize, args=(device,), daemon=True)
    waiting.start()
    waiting.join(SETTLE_S)
    if waiting.is_alive():
        raise StuckTransport(f"the device is still busy {SETTLE_S:g} s after an abort")


def read_when_ready(tensor: torch.Tensor, channels: Channels) -> list[float]:
    """The values of a small device tensor; raises at once when the generation is fenced.

    Raises:
        Aborted: the generation was fenced before the values were ready.
    """
    if tensor.device.type == "cpu":
        return [float(value) for value in tensor.tolist()]
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    ready: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record()
    with channels.waiting:
        while not ready.query():
            channels.check()
            time.sleep(_POLL_S)
    channels.check()  # an abort lets the device continue, with whatever was in the buffers
    return [float(value) for value in host.tolist()]
