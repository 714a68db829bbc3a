"""Compares what several ranks hold copies of, to find bits that changed by themselves.

Two things are copied: the parameters, which all replicas gather from each other in every step, and
the master weights that several ranks of tensor parallelism hold: of what it does not split, and of
heads of keys and values that ranks share. Copies are compared by their digests after the pass that
used them. Where parameters differ, they are gathered once more from the master weights, and each
rank compares its own with these: the wrong one knows itself, and is put right. A bit that changes
before it is copied, in a gradient or in a master weight, reaches all replicas alike: that is not
found here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from headway.common.node.failpoints import damage_at
from headway.common.node.flight_record import WAITING
from headway.common.plan.grid import Axis
from headway.common.plan.schedule.actions import Kind
from headway.trainer.comm.agreement import gathered
from headway.trainer.comm.interface import Comm
from headway.trainer.comm.nccl import read_when_ready
from headway.trainer.session.context import StepContext
from headway.trainer.session.origin import ranks_in_words
from headway.trainer.state.digest import digest, halves
from headway.trainer.state.flat import ALIGNMENT, FlatChunk
from headway.trainer.state.params import ParamSpec
from headway.trainer.state.spoil import flip_largest


class Replicas:
    """The comparisons of one rank in one generation."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._every = context.config.health.digest_every
        self._dp, self._tp = context.groups["dp"], context.groups["tp"]

    def compare(self, step: int) -> str:
        """What is wrong with this rank's copies, or may be, as a clause; "" if nothing is.

        All ranks call it after the pass of each step. It only looks in every ``digest_every`` of
        them.

        Raises:
            Aborted: the generation was fenced. RuntimeError: a peer failed.
        """
        if not self._every or (step + 1) % self._every:
            return ""
        if damage_at("worker.weights", step=step, rank=self._context.rank):
            flip_largest(self._context.flats[0].params)
        # recorded as what it waits in, so that a peer that hangs is found in the tables of groups
        recorder = self._context.recorder
        with recorder.record(Kind.ALL_GATHER, step=step, flags=WAITING):
            found = self._parameters()
        with recorder.record(Kind.TENSOR_PARALLEL, step=step, flags=WAITING):
            found += self._masters()
        return found[0] if found else ""

    def _parameters(self) -> list[str]:
        flats, rank = self._context.flats, self._context.rank
        if self._dp.size == 1:
            return []
        rows = self._gathered(self._dp, [digest(flat.params) for flat in flats])
        if all(row == rows[0] for row in rows):
            return []
        found = []
        for flat in flats:
            wanted = torch.empty_like(flat.params)
            self._dp.all_gather(wanted, flat.master.to(flat.params.dtype)).wait()
            found += [
                f"the weights of {name}, of rank {rank}, differ from those of its replicas"
                for name in _differing(flat, wanted)
            ]
            flat.params.copy_(wanted)
        count = torch.tensor(len(found), device=self._context.device)
        counts = self._gathered(self._dp, [count])
        if self._dp.rank == 0 and not any(map(any, counts)):
            found.append(f"the weights, of {self._some('dp')}, differed when they were compared")
        return found

    def _masters(self) -> list[str]:
        """Each of tensor parallelism's ranks updates its own copy of what others hold too."""
        if self._tp.size == 1:
            return []
        pieces = [one for flat in self._context.flats for one in _copied_over_tp(flat)]
        rows = self._gathered(self._tp, [digest(values) for _, values in pieces])
        for index, (spec, _) in enumerate(pieces):
            name, column = spec.name, [row[2 * index : 2 * index + 2] for row in rows]
            first = self._tp.rank - spec.copy
            holders = slice(first, first + spec.copies) if spec.copies > 1 else slice(None)
            most, count = Counter(column[holders]).most_common(1)[0]
            is_majority = 2 * count > len(column[holders])
            if not is_majority and spec.is_counted:
                return [f"the master weights of {name}, of {self._some('tp', holders)}, differ"]
            if is_majority and column[self._tp.rank] != most:
                where = f"of rank {self._context.rank}"
                return [f"the master weights of {name}, {where}, differ from those of its peers"]
        return []

    def _gathered(self, comm: Comm, digests: list[torch.Tensor]) -> list[tuple[float, ...]]:
        """The digests of each member of a group."""
        if not digests:
            return []
        mine = torch.cat([halves(one) for one in digests])
        values = read_when_ready(gathered(comm, mine), self._context.groups.channels)
        size = len(mine)
        return [tuple(values[at : at + size]) for at in range(0, len(values), size)]

    def _some(self, axis: Axis, members: slice = slice(None)) -> str:
        ranks = self._context.config.parallel.grid.group(axis, self._context.rank)
        return ranks_in_words(ranks[members])


def _differing(flat: FlatChunk, wanted: torch.Tensor) -> list[str]:
    """The parameters whose bits are not those of ``wanted``."""
    bits, others = flat.params.view(torch.uint8), wanted.view(torch.uint8)
    size = flat.params.element_size()
    return [
        place.spec.name
        for place in flat.placed
        if not torch.equal(
            bits[size * place.start : size * place.stop],
            others[size * place.start : size * place.stop],
        )
    ]


def _copied_over_tp(flat: FlatChunk) -> Iterator[tuple[ParamSpec, torch.Tensor]]:
    """The master weights of this rank's piece that other ranks of tp hold too.

    What tp does not split comes with its padding, as digests need whole words. Heads need none:
    they have an even number of rows.
    """
    for place, low, high in flat.owned():
        end = high
        if place.spec.is_replicated:
            end = min(-(-high // ALIGNMENT) * ALIGNMENT, flat.stop)
        elif place.spec.copies == 1:
            continue
        yield place.spec, flat.master[low - flat.start : end - flat.start]
