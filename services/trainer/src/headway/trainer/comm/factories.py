"""Creates the process groups of one generation, over gloo or NCCL.

Every rank asks for its groups in the same order, so that none wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed
from headway.common.node.group_table import NO_LINE, GroupLine
from headway.common.plan.collectives import LANES, GroupKind
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.ctas import Ctas
from headway.trainer.comm.gloo import GlooComm, gloo_options
from headway.trainer.comm.interface import Comm, PeerLost, SingleRank
from headway.trainer.comm.nccl import JointAbort, NcclComm, NcclPipe, connect_pair, nccl_group
from headway.trainer.comm.p2p import Direction, PipeComm

GroupLines: TypeAlias = Mapping[int, GroupLine]
"""What counts the calls of each group, by the numbers of ``plan.collectives``."""
PP_LINE = 2 * GroupKind.PP
_dist: Any = torch.distributed  # its stubs lack the stores and the methods of a bare group


class Factory(Protocol):
    """Creates the groups of one backend. ``ranks`` are world ranks, in group order."""

    def comm(self, name: str, ranks: Sequence[int], rank: int, line: GroupLine = NO_LINE) -> Comm:
        """The collective group; ``line`` counts its collectives."""

    def pipe(self, name: str, ranks: Sequence[int], rank: int) -> tuple[Comm, PipeComm]:
        """The collective group and the lanes of a pipeline."""


class GlooFactory:
    """Groups that share one device of ``host``, hence one thread for their sockets.

    ``is_v``: the chunks of a pipeline's ranks are placed in a V.
    """

    def __init__(
        self,
        store: Any,
        channels: Channels,
        host: str,
        timeout_s: float,
        lines: GroupLines | None = None,
        *,
        is_v: bool = False,
    ) -> None:
        self._store, self._channels, self._lines = store, channels, lines or {}
        self._is_v = is_v
        self._options = gloo_options(host, timeout_s)

    def comm(self, name: str, ranks: Sequence[int], rank: int, line: GroupLine = NO_LINE) -> Comm:
        """The collective group."""
        if len(ranks) == 1:
            return SingleRank()
        return GlooComm(self._group(name, ranks, rank), self._channels, name, line)

    def pipe(self, name: str, ranks: Sequence[int], rank: int) -> tuple[Comm, PipeComm]:
        """All on one gloo group, which keeps messages and collectives apart."""
        if len(ranks) == 1:
            return SingleRank(), PipeComm()
        group = self._group(name, ranks, rank)
        lanes = {
            lane: GlooComm(group, self._channels, f"{name}-{lane[0]}-{lane[1]}") for lane in LANES
        }
        pipe = PipeComm(lanes, ranks.index(rank), len(ranks), self._lines, is_v=self._is_v)
        return GlooComm(group, self._channels, name, self._lines.get(PP_LINE, NO_LINE)), pipe

    def _group(self, name: str, ranks: Sequence[int], rank: int) -> Any:
        self._channels.check()
        store = _dist.PrefixStore(f"{name}{min(ranks)}", self._store)
        try:
            return _dist.ProcessGroupGloo(store, ranks.index(rank), len(ranks), self._options)
        except RuntimeError as error:  # a member, or the store in the first rank, did not answer
            raise PeerLost(str(error)) from None


class NcclFactory:
    """Communicators of ``device`` that are aborted together.

    ``wraps``: the last rank of a pipeline also sends forward to the first, for interleaving.
    ``is_v``: every rank also sends forward to the previous one, for chunks that are placed in a V.
    """

    def __init__(
        self,
        store: Any,
        channels: Channels,
        device: torch.device,
        *,
        wraps: bool,
        is_v: bool = False,
        lines: GroupLines | None = None,
        ctas: Ctas = Ctas(),  # noqa: B008 - frozen
    ) -> None:
        self._store, self._channels, self._lines = store, channels, lines or {}
        self._device, self._wraps, self._is_v = device, wraps, is_v
        self._ctas = ctas
        self._joint = JointAbort()
        channels.on_abort(self._joint.abort)

    def comm(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        line: GroupLine = NO_LINE,
    ) -> Comm:
        """The collective group."""
        if len(ranks) == 1:
            return SingleRank()
        place = ranks.index(rank)
        group = self._group(name, ranks, place)
        self._joint.add(group)
        return NcclComm(group, self._channels, place, len(ranks), line)

    def pipe(self, name: str, ranks: Sequence[int], rank: int) -> tuple[Comm, PipeComm]:
        """A communicator for collectives, and one for each lane of each pair of neighbours."""
        if len(ranks) == 1:
            return SingleRank(), PipeComm()
        whole = self.comm(name, ranks, rank, self._lines.get(PP_LINE, NO_LINE))
        place, pairs = ranks.index(rank), {}
        for direction, upward, low, high in _pairs(len(ranks), wraps=self._wraps, is_v=self._is_v):
            if place in (low, high):
                peer, members = low + high - place, (ranks[low], ranks[high])
                lane = f"{name}-{direction}-{upward}-{low}-{high}-"
                sends = upward == (place == low)
                pairs[direction, upward, peer] = self._pair(lane, members, rank, sends=sends)
        return whole, NcclPipe(pairs, place, len(ranks), self._lines, is_v=self._is_v)

    def _pair(self, name: str, ranks: Sequence[int], rank: int, *, sends: bool) -> Comm:
        """The communicator of two stages, connected in the one direction that it is for."""
        place = ranks.index(rank)
        group = self._group(name, ranks, place, is_pair=True)
        pair = NcclComm(group, self._channels, place, len(ranks))
        with self._lost_store():
            connect_pair(pair, self._device, sends=sends)
        self._joint.add(group)  # not before: nothing can abort what is being connected
        return pair

    def _group(self, name: str, ranks: Sequence[int], place: int, *, is_pair: bool = False) -> Any:
        self._channels.check()
        store = _dist.PrefixStore(f"{name}{min(ranks)}", self._store)
        with self._lost_store():
            return nccl_group(
                store, place, len(ranks), self._device, ctas=self._ctas, is_pair=is_pair
            )

    @contextmanager
    def _lost_store(self) -> Iterator[None]:
        """An error of NCCL is the loss of a peer if the store is lost, too."""
        try:
            yield
        except RuntimeError as error:
            if self._store.is_lost:
                raise PeerLost(str(error)) from None
            raise


def _pairs(size: int, *, wraps: bool, is_v: bool) -> list[tuple[Direction, bool, int, int]]:
    """Lane, lower and higher pipeline rank of every communicator that a pipeline needs.

    All ranks create theirs in this order, so that none deadlock. Every other pair of neighbours
    comes first, because those can be created at the same time.
    """
    found: list[tuple[Direction, bool, int, int]] = []
    for low in (*range(0, size - 1, 2), *range(1, size - 1, 2)):
        found += [("forward", True, low, low + 1), ("backward", False, low, low + 1)]
        if is_v:
            found += [("forward", False, low, low + 1), ("backward", True, low, low + 1)]
    if wraps:
        found += [("forward", False, 0, size - 1), ("backward", True, 0, size - 1)]
    return found
