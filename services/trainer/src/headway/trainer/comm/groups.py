"""The store and the process groups of one generation, created anew each time, dropped as a whole.

All groups are connected when ``build`` returns; after that the store only serves the last meeting.
It runs in the generation's rank 0, so losing it means losing that rank, and no stale key can
survive. Everything listens on the given host address only: loopback, or that of the fabric.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeGuard

import torch
from headway.common.node.failpoints import failpoint
from headway.common.node.group_table import NO_LINE, GroupLine, GroupTable
from headway.common.plan.collectives import GroupKind, memberships
from headway.common.plan.grid import AXES, Axis, Grid
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.ctas import Ctas
from headway.trainer.comm.every_rank import EveryRank
from headway.trainer.comm.factories import Factory, GlooFactory, NcclFactory
from headway.trainer.comm.gloo import GlooComm
from headway.trainer.comm.interface import Aborted, Comm, PeerLost, SingleRank, StuckTransport
from headway.trainer.comm.nccl import NcclComm, use_interface
from headway.trainer.comm.p2p import PipeComm
from headway.trainer.comm.store import StoreClient, StoreEndpoint, StoreServer

Announce = Callable[[StoreEndpoint], None]
Lookup = Callable[[], StoreEndpoint]
STUCK_LIMIT_S = 3.0
"""After an abort; below ``recovery.leave_timeout_s``, after which the worker is killed anyway."""


@dataclass
class Groups:
    """What one rank needs to communicate in ``generation``. Groups of one are ``SingleRank``."""

    generation: int
    channels: Channels
    comms: dict[Axis, Comm] = field(default_factory=lambda: {axis: SingleRank() for axis in AXES})
    """The collective group of each axis."""
    pipe: PipeComm = field(default_factory=PipeComm)
    every_rank: EveryRank = field(default_factory=lambda: EveryRank((), 0, 1))
    lines: dict[int, GroupLine] = field(default_factory=dict)
    """What counts the calls of each group, by the numbers of ``plan.collectives``."""
    _store: StoreClient | None = None
    _held: list[object] = field(default_factory=list)

    @classmethod
    def alone(cls, generation: int = 0) -> Groups:
        """The groups of a world of one."""
        return cls(generation, Channels())

    def __getitem__(self, axis: Axis) -> Comm:
        """The collective group of ``axis``."""
        return self.comms[axis]

    def line(self, kind: GroupKind) -> GroupLine:
        """What counts the calls of the group of ``kind``."""
        return self.lines.get(2 * kind, NO_LINE)

    def limit(self, timeout_s: float) -> None:
        """The first step is done: operations over gloo take at most so long from now on."""
        for comm in (*self.comms.values(), *self.pipe.comms()):
            if isinstance(comm, GlooComm):
                comm.limit(timeout_s)

    def meet(self) -> None:
        """Wait until every rank is done with the generation's groups.

        It is called after the values of the last collective were read, before ``release``.

        Freeing an NCCL communicator aborts it, also while a kernel of a peer still reads this
        rank's memory. The ranks meet in the store, since a last collective would need another one
        after it. A store that is gone was closed by rank 0, which closes it only after all have
        come, or has failed: then there is nobody left to wait for.

        Raises:
            Aborted: the generation was fenced.
        """
        store, size = self._store, self.every_rank.size
        if store is None:
            return
        with contextlib.suppress(PeerLost):
            self.channels.open("meet").call(lambda: _arrive(store, size)).wait()

    def release(self) -> None:
        """End the channels and free groups and store in the background; never blocks.

        It is the last call on this object.
        """
        self.channels.close()
        self._store = None
        held, self._held = self._held, []
        for comm in (*self.comms.values(), *self.pipe.comms()):
            if isinstance(comm, GlooComm | NcclComm):
                held = comm.detach() + held  # the store and the device are freed last
        self.comms, self.pipe = {axis: SingleRank() for axis in AXES}, PipeComm()
        self.every_rank = EveryRank((), 0, 1)
        for line in self.lines.values():
            line.drop()
        _reap(held)


def build(
    generation: int,
    grid: Grid,
    rank: int,
    *,
    host: str,
    announce: Announce,
    lookup: Lookup,
    channels: Channels,
    timeout_s: float,
    join_timeout_s: float | None = None,
    device: torch.device | None = None,
    joins_ends: bool = False,
    ports: str = "",
    first_timeout_s: float | None = None,
    table: GroupTable | None = None,
    ctas: Ctas = Ctas(),  # noqa: B008 - frozen
) -> Groups:
    """Create the generation's groups on a build thread and wait for them as for any other call.

    ``announce`` and ``lookup`` run on the build thread. Rank 0 announces the address of its store;
    the others look it up, which may block and should end when the generation is fenced (otherwise
    its thread is abandoned).

    ``device``: NCCL builds them for a GPU, otherwise gloo does.
    ``timeout_s``: for each use of the groups, and of the store once they are built.
    ``join_timeout_s``: for a member to join while they are built, None for ``timeout_s``. On GPUs
    it includes the time in which a process loads CUDA's libraries, all those of a node at once.
    ``joins_ends``: the first and the last rank exchange messages, also without interleaving.
    ``ports``: those that the store may take, ``LOW-HIGH``; "" is any.
    ``first_timeout_s``: of operations before ``Groups.limit``; ``timeout_s`` by default.
    ``table``: counts the collectives and messages of this rank.
    ``ctas``: limits of the thread blocks of NCCL.

    Raises:
        Aborted: the generation was fenced; a half-built result is freed in the background.
        PeerLost: a member did not join within a few ``join_timeout_s``, or failed.
        StuckTransport: it was fenced, and the build thread stays inside NCCL.
        RuntimeError: anything else that went wrong on the build thread.
    """
    if grid.world_size == 1:
        return Groups(generation, channels)
    joining_s = timeout_s if join_timeout_s is None else join_timeout_s
    first_s, groups = first_timeout_s or timeout_s, Groups(generation, channels)
    if table is not None:
        wanted = memberships(grid, rank, joins_ends=joins_ends)
        groups.lines = table.begin(generation, wanted)
    limits_s = (joining_s, first_s, timeout_s)
    builder = _Builder(
        generation, grid, rank, host, ports, *limits_s, device, groups, joins_ends, ctas
    )
    try:
        return channels.open("build").call(lambda: builder.run(announce, lookup)).result()
    except BaseException as error:
        builder.abandon()
        if not isinstance(error, Aborted):
            raise
        # gloo's thread ends by itself, since the fence cuts its connections
        if _is_gpu(device) and not builder.ended.wait(STUCK_LIMIT_S):
            raise StuckTransport(
                f"NCCL does not leave the making of a communicator {STUCK_LIMIT_S:g} s after the "
                f"abort of generation {generation}"
            ) from None
        raise


@dataclass(eq=False)
class _Builder:
    """Runs on the build thread."""

    generation: int
    grid: Grid
    rank: int
    host: str
    ports: str
    joining_s: float
    first_s: float
    using_s: float
    device: torch.device | None
    groups: Groups
    joins_ends: bool
    ctas: Ctas

    def __post_init__(self) -> None:
        self.ended = threading.Event()
        self._is_abandoned = False
        self._turn = threading.Lock()

    def run(self, announce: Announce, lookup: Lookup) -> Groups:
        """Store, then tp, pp, dp: the same order on all ranks, so that none wait for each other."""
        try:
            return self._build(announce, lookup)
        finally:
            with self._turn:
                self.ended.set()
                if self._is_abandoned:
                    self.groups.release()

    def abandon(self) -> None:
        """Free the groups now, or once the build thread has left them; nobody will use them.

        A thread that fails does not do so itself: its error would no longer reach the caller.
        """
        with self._turn:
            self._is_abandoned = True
            if self.ended.is_set():
                self.groups.release()

    def _build(self, announce: Announce, lookup: Lookup) -> Groups:
        groups, grid, rank = self.groups, self.grid, self.rank
        store = self._open_store(announce, lookup)
        make = self._factory(store)
        groups._held.insert(0, make)
        prefix = f"g{self.generation}"
        tp_line, dp_line = groups.line(GroupKind.TP), groups.line(GroupKind.DP)
        groups.comms["tp"] = make.comm(f"{prefix}/tp", grid.group("tp", rank), rank, tp_line)
        failpoint("worker.mid_rendezvous", generation=self.generation)
        groups.comms["pp"], groups.pipe = make.pipe(f"{prefix}/pp", grid.group("pp", rank), rank)
        groups.comms["dp"] = make.comm(f"{prefix}/dp", grid.group("dp", rank), rank, dp_line)
        in_order = [groups.comms[axis] for axis in AXES]
        line = groups.line(GroupKind.EVERY_RANK)
        groups.every_rank = EveryRank(in_order, rank, grid.world_size, line)
        store.timeout_s = self.using_s
        groups._store = store
        groups.channels.check()
        return groups

    def _factory(self, store: StoreClient) -> Factory:
        channels, lines, is_v = self.groups.channels, self.groups.lines, self.grid.is_v
        if not _is_gpu(self.device):
            return GlooFactory(store, channels, self.host, self.first_s, lines, is_v=is_v)
        use_interface(self.host)
        wraps = self.joins_ends or (self.grid.vp > 1 and not is_v)
        return NcclFactory(
            store,
            channels,
            self.device,
            wraps=wraps,
            is_v=is_v,
            lines=lines,
            ctas=self.ctas,
        )

    def _open_store(self, announce: Announce, lookup: Lookup) -> StoreClient:
        if self.rank == 0:
            server = StoreServer(
                self.host,
                self.ports,
                world_size=self.grid.world_size,
                timeout_s=self.joining_s,
            )
            self.groups._held.append(_Closing(server))
            endpoint = server.endpoint
            announce(endpoint)
        else:
            endpoint = lookup()
            self.groups.channels.check()
        store = StoreClient(endpoint, self.joining_s)
        self.groups._held.append(_Closing(store))
        return store


def _is_gpu(device: torch.device | None) -> TypeGuard[torch.device]:
    return device is not None and device.type == "cuda"


class _Closing:
    """Closes a store's end when it is freed."""

    def __init__(self, end: StoreServer | StoreClient) -> None:
        self._end = end

    def __del__(self) -> None:
        self._end.close()


def _arrive(store: StoreClient, size: int) -> None:
    """Count this rank, and wait for the last one."""
    if store.add("arrived", 1) == size:
        store.set("all-arrived", b"")
    store.wait(["all-arrived"])


def _reap(held: list[object]) -> None:
    """Free groups and store on a separate thread: 10 ms each, or gloo's timeout if one is in use.

    Not a daemon thread, since an interpreter that exits during this would abort the process.
    """

    def run() -> None:
        while held:
            del held[0]

    if held:
        threading.Thread(target=run, name="group-reaper", daemon=False).start()
