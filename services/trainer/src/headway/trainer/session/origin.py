"""Finds the rank, the layer and the tensor that a value that is not finite came from.

A step with such a value is skipped, so its weights are still there: its micro-batches are computed
once more, by all ranks, and this time every layer and every rank's own gradients are looked at
before they are added up. A step that is fine costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from headway.trainer.comm.agreement import least
from headway.trainer.model.watched import Direction, is_finite, watching
from headway.trainer.pipeline.executor import Pipeline
from headway.trainer.session.context import StepContext
from headway.trainer.session.hooks import Origin
from headway.trainer.session.repeat import MakePass, repeat_pass
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.spoil import Spoiler

MOST_NAMED = 8
"""Ranks that are listed by number."""
_BITS = 20
"""Bits of a place and of a rank in the number that the ranks agree on."""
_LATER = 1 << (_BITS - 1)
"""Added to places that are looked at again, after values of other ranks were added."""


class Sign(IntEnum):
    """What shows that a value is not finite; an earlier one explains those that follow."""

    WEIGHTS = 0
    OUTPUT = 1
    OUTPUT_GRADIENT = 2
    GRADIENT = 3
    LOSS_ONCE = 4  # of the step, and not when it was repeated
    SUM_ONCE = 5


def is_reported(number: int) -> bool:
    """Whether this skipped step is searched and logged: numbers 1 to 10, 20 ... 100, 200 ..."""
    return not str(number)[1:].strip("0")


def find_origin(
    context: StepContext, step: int, done: Pipeline, make_pass: MakePass, spoiler: Spoiler
) -> Origin | None:
    """Repeat the pass ``done`` of a skipped step, on all ranks together; None if nothing is found.

    The gradients are those of this rank alone afterwards.

    Raises:
        Aborted: the generation was fenced. RuntimeError: a peer failed.
    """
    search = _Search(context, spoiler)
    search.look_at_weights()
    search.look_at_sums(done.loss_sum)
    with watching(context.chunks, search.layers, search.note_layer):
        repeat_pass(
            context,
            step,
            done.batches,
            make_pass,
            after_bucket=lambda chunk, bucket: search.look_at_gradients(chunk, bucket, step),
        )
    return search.agree(step)


@dataclass(frozen=True)
class _Found:
    sign: Sign
    place: int
    """In the order in which a step comes by, within signs of one kind."""
    what: str
    ranks: tuple[int, ...]
    """Those of which it may have come."""


class _Search:
    """The first sign of one rank."""

    def __init__(self, context: StepContext, spoiler: Spoiler) -> None:
        self._context, self._spoiler = context, spoiler
        self._num_layers = context.config.model.layers
        grid, rank = context.config.parallel.grid, context.rank
        stages = context.config.stages
        own = grid.stage_map.stages_of(context.place.pp, grid.vp)
        self.layers = [stages[stage] for stage in own]
        self._alone = (rank,)
        self._shard, self._replicas = grid.group("tp", rank), grid.group("dp", rank)
        self._first: _Found | None = None

    def look_at_weights(self) -> None:
        """The rank's own masters, then the parameters that all replicas have gathered."""
        for flat in self._context.flats:
            for place, low, high in flat.owned():
                if not is_finite(flat.master[low - flat.start : high - flat.start]):
                    what = f"the weights of {place.spec.name}"
                    self._note(Sign.WEIGHTS, self._layer(place.spec.name), what)
            for name in _unsound(flat, flat.params):
                self._note(Sign.WEIGHTS, _LATER + self._layer(name), f"the weights of {name}")

    def look_at_sums(self, loss_sum: torch.Tensor) -> None:
        """The step's own loss, and its gradients as they were added up over the replicas."""
        if not is_finite(loss_sum):
            self._note(Sign.LOSS_ONCE, 0, "the loss", self._shard)
        for flat in self._context.flats:
            for place, low, high in flat.owned():
                if not is_finite(flat.grads[low:high]):
                    ranks = self._replicas
                    if place.spec.is_replicated or place.spec.copies > 1:
                        grid = self._context.config.parallel.grid
                        ranks = tuple(r for one in ranks for r in grid.group("tp", one))
                    what = f"the gradient of {place.spec.name}"
                    self._note(Sign.SUM_ONCE, self._backward(place.spec.name), what, ranks)

    def look_at_gradients(self, chunk: int, bucket: int, step: int) -> None:
        """This rank's own gradients of a bucket, then with those that tp and tied heads add."""
        context, place = self._context, self._context.buckets_of(chunk)[bucket]
        flat = context.flats[place]
        self._spoiler.spoil(flat, place, step)
        for name in _unsound(flat, flat.grads):
            self._note(Sign.GRADIENT, self._backward(name), f"the gradient of {name}")
        context.chunks[chunk].finish_grads(bucket)
        if bucket == 0:
            context.tied.reduce(chunk)
        for name in _unsound(flat, flat.grads):
            what = f"the gradient of {name}"
            self._note(Sign.GRADIENT, _LATER + self._backward(name), what, self._shard)

    def note_layer(self, direction: Direction, layer: int) -> None:
        """A layer has made it of values that were finite."""
        names = {-1: "the embedding", self._num_layers: "the head"}
        name = names.get(layer, f"layers.{layer}")
        if direction == "forward":
            self._note(Sign.OUTPUT, 1 + layer, f"the output of {name}", self._shard)
        else:
            what = f"the gradient that leaves {name}"
            self._note(Sign.OUTPUT_GRADIENT, self._num_layers - layer, what, self._shard)

    def agree(self, step: int) -> Origin | None:
        """The first one of all ranks, which only its own rank can describe."""
        context, mine = self._context, self._first
        number = math.inf
        if mine is not None:
            number = (((mine.sign << _BITS) + mine.place) << _BITS) + context.rank
        groups = context.groups
        with context.agreement(step):
            first = least(groups.every_rank, groups.channels, number, context.device)
        if first == math.inf:
            return None
        rank = int(first) % (1 << _BITS)
        is_mine = mine is not None and rank == context.rank
        return Origin(rank, _described(mine) if mine is not None and is_mine else "")

    def _layer(self, name: str) -> int:
        """Which layer a parameter belongs to, counted from the embedding, which is 0."""
        first, _, rest = name.partition(".")
        if first == "layers":
            return 1 + int(rest.partition(".")[0])
        return 0 if first == "embedding" else 1 + self._num_layers

    def _backward(self, name: str) -> int:
        return 1 + self._num_layers - self._layer(name)

    def _note(self, sign: Sign, place: int, what: str, ranks: Sequence[int] | None = None) -> None:
        found = _Found(sign, place, what, tuple(ranks or self._alone))
        if self._first is None or (sign, place) < (self._first.sign, self._first.place):
            self._first = found


def _unsound(flat: FlatChunk, values: torch.Tensor) -> list[str]:
    """The parameters whose piece of a flat buffer is not finite."""
    if is_finite(values):
        return []
    return [one.spec.name for one in flat.placed if not is_finite(values[one.start : one.stop])]


def ranks_in_words(ranks: Sequence[int]) -> str:
    """One rank, or those of which it may be any."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= MOST_NAMED:
        return f"one of the ranks {', '.join(map(str, ranks))}"
    return f"one of {len(ranks)} ranks from {ranks[0]} to {ranks[-1]}"


def _described(found: _Found) -> str:
    once = found.sign >= Sign.LOSS_ONCE
    return f"{found.what}, of {ranks_in_words(found.ranks)}" + (
        "; it did not come back when the step was repeated" if once else ""
    )
