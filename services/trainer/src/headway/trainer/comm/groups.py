"""The store and the process groups of one generation, created anew each time, dropped as a whole.

All groups are connected when ``build`` returns; after that the store is not needed. It runs in the
generation's rank 0, so losing it means losing that rank, and no stale key can survive. Everything
listens on the given host address only: loopback, or that of the fabric.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
import torch.distributed
from headway.common.node.failpoints import failpoint
from headway.common.plan.grid import Grid
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.gloo import GlooComm, gloo_options
from headway.trainer.comm.interface import Comm, PeerLost, Solo
from headway.trainer.comm.nccl import JointAbort, NcclComm, NcclPipe, nccl_group
from headway.trainer.comm.p2p import Direction, PipeComm
from headway.trainer.comm.store import StoreClient, StoreEndpoint, StoreServer

_dist: Any = torch.distributed  # its stubs lack the stores and the methods of a bare group
Backend = Literal["gloo", "nccl"]
Announce = Callable[[StoreEndpoint], None]
Lookup = Callable[[], StoreEndpoint]


@dataclass
class Groups:
    """What one rank needs to communicate in ``generation``. Groups of one are ``Solo``."""

    generation: int
    channels: Channels
    tp: Comm = field(default_factory=Solo)
    dp: Comm = field(default_factory=Solo)
    world: Comm = field(default_factory=Solo)
    pipe: PipeComm = field(default_factory=PipeComm)
    _held: list[object] = field(default_factory=list)

    @classmethod
    def alone(cls, generation: int = 0) -> Groups:
        """The groups of a world of one."""
        return cls(generation, Channels())

    def release(self) -> None:
        """End the channels and free groups and store in the background. Never
        blocks; the last call."""
        self.channels.close()
        held, self._held = self._held, []
        for comm in (self.tp, self.dp, self.world, *self.pipe.comms()):
            if isinstance(comm, GlooComm | NcclComm):
                held = comm.detach() + held  # the store and the device are freed last
        self.tp = self.dp = self.world = Solo()
        self.pipe = PipeComm()
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
    backend: Backend = "gloo",
    device: torch.device | None = None,
) -> Groups:
    """Create the generation's groups on a build thread and wait for them as for any other call.

    ``announce`` and ``lookup`` run on the build thread. Rank 0 announces the address of its store;
    the others look it up, which may block and should end when the generation is fenced (otherwise
    its thread is abandoned).

    Raises:
        Aborted: the generation was fenced; a half-built result is freed in the background.
        PeerLost: a member did not join within a few ``timeout_s``, or failed.
        RuntimeError: anything else that went wrong on the build thread.
    """
    if grid.world_size == 1:
        return Groups(generation, channels)
    builder = _Builder(generation, grid, rank, host, timeout_s, backend, device, channels)
    return channels.open("build").call(lambda: builder.run(announce, lookup)).result()


class _Builder:
    """Runs on the build thread."""

    def __init__(
        self,
        generation: int,
        grid: Grid,
        rank: int,
        host: str,
        timeout_s: float,
        backend: Backend,
        device: torch.device | None,
        channels: Channels,
    ) -> None:
        self._generation, self._grid, self._rank, self._host = generation, grid, rank, host
        self._timeout_s, self._backend, self._device = timeout_s, backend, device
        self._groups = Groups(generation, channels)

    def run(self, announce: Announce, lookup: Lookup) -> Groups:
        """Store, then tp, pp, dp, world: the same order on all ranks, so that none deadlock."""
        groups, grid, rank = self._groups, self._grid, self._rank
        try:
            store = self._open_store(announce, lookup)
            make: _Factory
            if self._backend == "gloo":
                make = _GlooFactory(store, groups.channels, self._host, self._timeout_s)
            else:
                device = self._device or torch.device("cuda")
                make = _NcclFactory(
                    store, groups.channels, self._timeout_s, device, wraps=grid.vp > 1
                )
            self._groups._held.insert(0, make)
            prefix = f"g{self._generation}"
            groups.tp = make.comm(f"{prefix}/tp", grid.tp_group(rank), rank)
            failpoint("worker.mid_rendezvous", generation=self._generation)
            groups.pipe = make.pipe(f"{prefix}/pp", grid.pp_group(rank), rank)
            groups.dp = make.comm(f"{prefix}/dp", grid.dp_group(rank), rank)
            groups.world = make.comm(f"{prefix}/world", range(grid.world_size), rank)
            groups.channels.check()
        except BaseException:
            groups.release()
            raise
        return groups

    def _open_store(self, announce: Announce, lookup: Lookup) -> StoreClient:
        if self._rank == 0:
            server = StoreServer(self._host)
            self._groups._held.append(_Closing(server))
            endpoint = server.endpoint
            announce(endpoint)
        else:
            endpoint = lookup()
            self._groups.channels.check()
        store = StoreClient(endpoint, self._timeout_s)
        self._groups._held.append(_Closing(store))
        return store


class _Closing:
    """Closes a store's end when it is freed."""

    def __init__(self, end: StoreServer | StoreClient) -> None:
        self._end = end

    def __del__(self) -> None:
        self._end.close()


class _Factory(Protocol):
    """Creates the groups of one backend. ``ranks`` are world ranks, in group order."""

    def comm(self, name: str, ranks: Sequence[int], rank: int) -> Comm:
        """The collective group."""

    def pipe(self, name: str, ranks: Sequence[int], rank: int) -> PipeComm:
        """The lanes of a pipeline."""


class _GlooFactory:
    def __init__(self, store: Any, channels: Channels, host: str, timeout_s: float) -> None:
        self._store, self._channels = store, channels
        self._options = gloo_options(host, timeout_s)

    def comm(self, name: str, ranks: Sequence[int], rank: int) -> Comm:
        if len(ranks) == 1:
            return Solo()
        return GlooComm(self._group(name, ranks, rank), self._channels, name)

    def pipe(self, name: str, ranks: Sequence[int], rank: int) -> PipeComm:
        if len(ranks) == 1:
            return PipeComm()
        group = self._group(name, ranks, rank)
        lanes = {
            lane: GlooComm(group, self._channels, f"{name}-{lane[0]}-{lane[1]}") for lane in LANES
        }
        return PipeComm(lanes, ranks.index(rank), len(ranks))

    def _group(self, name: str, ranks: Sequence[int], rank: int) -> Any:
        self._channels.check()
        store = _dist.PrefixStore(f"{name}{min(ranks)}", self._store)
        try:
            return _dist.ProcessGroupGloo(store, ranks.index(rank), len(ranks), self._options)
        except RuntimeError as error:  # a member, or the store in the first rank, did not answer
            raise PeerLost(str(error)) from None


class _NcclFactory:
    """``wraps``: the last rank of a pipeline also sends forward to the first, for interleaving."""

    def __init__(
        self, store: Any, channels: Channels, timeout_s: float, device: torch.device, *, wraps: bool
    ) -> None:
        self._store, self._channels, self._timeout_s, self._device = (
            store,
            channels,
            timeout_s,
            device,
        )
        self._wraps = wraps
        self._joint = JointAbort()
        channels.on_abort(self._joint.abort)

    def comm(self, name: str, ranks: Sequence[int], rank: int) -> Comm:
        if len(ranks) == 1:
            return Solo()
        self._channels.check()
        store, place = _dist.PrefixStore(f"{name}{min(ranks)}", self._store), ranks.index(rank)
        try:
            group = nccl_group(store, place, len(ranks), self._timeout_s, self._device)
        except RuntimeError as error:
            if self._store.is_lost:
                raise PeerLost(str(error)) from None
            raise
        self._joint.add(group)
        return NcclComm(group, self._channels, place, len(ranks))

    def pipe(self, name: str, ranks: Sequence[int], rank: int) -> PipeComm:
        if len(ranks) == 1:
            return PipeComm()
        place, pairs = ranks.index(rank), {}
        for direction, upward, low, high in _pairs(len(ranks), wraps=self._wraps):
            if place in (low, high):
                peer, members = low + high - place, (ranks[low], ranks[high])
                pair = self.comm(f"{name}-{direction}-{upward}-{low}-{high}-", members, rank)
                pairs[direction, upward, peer] = pair
        return NcclPipe(pairs, place, len(ranks))


def _pairs(size: int, *, wraps: bool) -> list[tuple[Direction, bool, int, int]]:
    """Lane, lower and higher pipeline rank of every communicator that a pipeline needs.

    All ranks create theirs in this order, so that none deadlock. Every other pair of neighbours
    comes first, because those can be created at the same time.
    """
    found: list[tuple[Direction, bool, int, int]] = []
    for low in (*range(0, size - 1, 2), *range(1, size - 1, 2)):
        found += [("forward", True, low, low + 1), ("backward", False, low, low + 1)]
    if wraps:
        found += [("forward", False, 0, size - 1), ("backward", True, 0, size - 1)]
    return found


LANES: tuple[tuple[Direction, bool], ...] = (
    ("forward", True),
    ("forward", False),
    ("backward", True),
    ("backward", False),
)


def _reap(held: list[object]) -> None:
    """Free groups and store on a separate thread: 10 ms each, or gloo's timeout if one is in use.

    Not a daemon thread, since an interpreter that exits during this would abort the process.
    """

    def run() -> None:
        while held:
            del held[0]

    if held:
        threading.Thread(target=run, name="group-reaper", daemon=False).start()
