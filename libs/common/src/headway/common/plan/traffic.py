"""Bytes that ranks send each other in one training step, from the layout of a run alone.

A collective counts as a ring in rank order, in which each rank sends to the next and the last to
the first: (n - 1) / n of the whole tensor per gather or reduce-scatter of n ranks (Patarasuk and
Yuan, J. Parallel Distrib. Comput. 69 (2009), section 3). Left out are what not every step does
(evaluation, snapshots, comparisons of replicas), the few sums of LAMB, the sums of heads of keys
and values that ranks share, and the padding of each bucket beyond a chunk's first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from headway.common.plan.grid import AXES, Axis, Grid
from headway.common.plan.memory.predict import Passage, lists_of
from headway.common.plan.memory.shape import MemoryShape
from headway.common.plan.placement import Placement, check_known
from headway.common.plan.schedule.actions import SENDS, Kind, Schedule
from headway.common.plan.topology import Link, Topology

Use = Literal["tensor parallel", "data parallel", "pipeline", "tied table", "sums"]
"""What the bytes are for."""
NORM_BYTES = 8 * (3 + 8)
"""What a rank puts into the two reductions of NORM, in fp64: three sums, eight numbers to agree on
(``trainer.comm.agreement``). They are gathered on one axis after the other."""


@dataclass(frozen=True)
class Ring:
    """The collectives of an axis: what each rank sends to the next of its group."""

    use: Use
    axis: Axis
    nbytes: tuple[int, ...]
    """By pipeline coordinate."""


@dataclass(frozen=True)
class Lane:
    """Messages from each rank of one pipeline coordinate to the rank of another with its tp, dp."""

    use: Use
    sender: int
    receiver: int
    nbytes: int
    """From one rank to one rank."""


@dataclass(frozen=True)
class Traffic:
    """The bytes of one step between all ranks of ``grid``."""

    grid: Grid
    rings: tuple[Ring, ...] = ()
    lanes: tuple[Lane, ...] = ()

    def messages(self) -> Iterator[tuple[Use, int, int, int]]:
        """Use, sender, receiver and bytes, for each pair of ranks that communicate."""
        grid = self.grid
        in_stage = grid.stride("pp")
        for ring in self.rings:
            stride, size = grid.stride(ring.axis), grid.degree(ring.axis)
            for rank in range(grid.world_size if size > 1 else 0):
                is_last = rank // stride % size == size - 1
                following = rank - (size - 1) * stride if is_last else rank + stride
                yield ring.use, rank, following, ring.nbytes[rank // in_stage]
        for lane in self.lanes:
            for place in range(in_stage):
                sender, receiver = (pp * in_stage + place for pp in (lane.sender, lane.receiver))
                yield lane.use, sender, receiver, lane.nbytes


def step_traffic(shape: MemoryShape) -> Traffic:
    """The traffic of a step in which every replica has ``num_micro_batches``.

    Raises:
        ConfigError: the schedule cannot serve this grid.
    """
    grid = shape.grid
    order = lists_of(shape)
    every = range(grid.pp)
    rings = [
        Ring("tensor parallel", "tp", tuple(_tensor_parallel(shape, pp, order) for pp in every)),
        Ring("data parallel", "dp", tuple(_data_parallel(shape, pp) for pp in every)),
    ]
    rings += [
        Ring("sums", axis, ((grid.degree(axis) - 1) * NORM_BYTES,) * grid.pp) for axis in AXES
    ]
    sends = Counter((pp, a.peer) for pp in every for a in order.ranks[pp] if a.kind in SENDS)
    lanes = [Lane("pipeline", *ends, n * shape.sizes.piece) for ends, n in sorted(sends.items())]
    first, last = grid.stage_map.ends
    if shape.model.tied and first != last:
        table = shape.model.table_rows * shape.model.hidden // grid.tp
        lanes.append(Lane("tied table", 0, last, table * shape.sizes.param))
        lanes.append(Lane("tied table", last, 0, table * shape.sizes.master))
    return Traffic(grid, tuple(rings), tuple(lanes))


def bytes_by_link(
    traffic: Traffic, placement: Placement, topology: Topology
) -> dict[Use, dict[Link, int]]:
    """Bytes per step, of all ranks together, over each kind of link; without uses of no bytes.

    Raises:
        ConfigError: a rank is on a node that the topology does not have.
    """
    check_known(placement, topology)
    nodes, found = placement.node_by_rank(), dict[Use, dict[Link, int]]()
    for use, sender, receiver, nbytes in traffic.messages():
        if nbytes:
            by_link = found.setdefault(use, dict.fromkeys(Link, 0))
            by_link[topology.link(nodes[sender], nodes[receiver])] += nbytes
    return found


def _data_parallel(shape: MemoryShape, pp: int) -> int:
    """The gather of parameters and the reduce-scatter of gradients, of all chunks."""
    grid, sizes = shape.grid, shape.sizes
    numel = sum(map(shape.numel, grid.stage_map.stages_of(pp, grid.vp)))
    return (grid.dp - 1) * numel // grid.dp * (sizes.param + shape.reduced)


def _tensor_parallel(shape: MemoryShape, pp: int, order: Schedule) -> int:
    """What passes gather and sum, and the sum of gradients that every tp rank holds."""
    grid = shape.grid
    if grid.tp == 1:
        return 0
    stages = grid.stage_map.stages_of(pp, grid.vp)
    passes = [_passes(shape, stage) for stage in stages]
    total = sum(passes[action.chunk].get(action.kind, 0) for action in order.ranks[pp])
    for stage in stages:
        nbytes = shape.replicated_numel(stage) * shape.sizes.master
        total += 2 * (grid.tp - 1) * nbytes // grid.tp
    return total


@cache
def _passes(shape: MemoryShape, stage: int) -> dict[Kind, int]:
    """Bytes that a rank sends over tp in each kind of pass of one micro-batch."""
    whole, split = Passage(shape, stage), Passage(shape, stage)
    whole.forward()
    found = {Kind.FORWARD: whole.sent}
    whole.backward(deferred=False)
    found[Kind.BACKWARD] = whole.sent - found[Kind.FORWARD]
    split.forward()
    split.backward(deferred=True)
    found[Kind.BACKWARD_INPUT] = split.sent - found[Kind.FORWARD]
    before = split.sent
    split.weight()
    found[Kind.BACKWARD_WEIGHT] = split.sent - before
    return found
