"""Predicted memory of one rank, in bytes, part by part, from the layout of a run alone.

Every pipeline rank is different: which stage it has, and how many micro-batches its schedule keeps.
Ranks that differ in tp or dp only are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache

from headway.common.plan.memory.layers import Layers
from headway.common.plan.memory.ledger import Ledger, Tape
from headway.common.plan.memory.shape import MemoryShape
from headway.common.plan.schedule.actions import RECEIVES, SENDS, Action, Kind, Schedule
from headway.common.plan.schedule.generate import generate
from headway.common.plan.schedule.lower import lower

POSTED = 4
"""Receives that a rank keeps open: ``POSTED_AHEAD`` of pipeline.py and the one that is consumed."""
BYTES_PER_TOKEN = 17
"""Bytes per token of a step: tokens and labels in int64, and the mask in uint8."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank at its peak. ``total`` leaves out ``snapshots``, which is host memory."""

    pp_rank: int
    parameters: int
    gradients: int
    optimizer: int
    """Master weights and moments of this rank's shard."""
    activations: int
    """What waits for its backward at the peak, the micro-batch under way included."""
    messages: int
    """Activations and gradients between stages: receives that are open, sends under way."""
    working: int
    """Temporary tensors of the operation that makes the peak, and the step's tokens."""
    in_flight: int
    """Pairs of chunk and micro-batch whose activations are kept at the peak."""
    snapshots: int
    """Slots of the rank's arena in shared memory; a GPU's are page-locked."""

    @property
    def total(self) -> int:
        """On the device that computes."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.activations
            + self.messages
            + self.working
        )

    def parts(self) -> dict[str, int]:
        """The parts of ``total`` by name, the largest first."""
        names = [f.name for f in fields(self)]
        chosen = {n: getattr(self, n) for n in names if n not in ("pp_rank", "in_flight")}
        del chosen["snapshots"]
        return dict(sorted(chosen.items(), key=lambda item: -item[1]))


@dataclass(frozen=True)
class _ChunkPass:
    """What one micro-batch uses in one chunk, its input included.

    ``forward``, ``backward``, ``weight`` are peaks; ``kept`` is held after the forward, ``waiting``
    after a backward whose weight gradients are deferred.
    """

    forward: int
    kept: int
    backward: int
    split_backward: int
    waiting: int
    weight: int


def predict(shape: MemoryShape, pp_rank: int) -> RankMemory:
    """The memory of the ranks with this pipeline coordinate.

    Raises:
        ConfigError: the schedule cannot serve this grid, or an unknown mode.
    """
    grid, sizes = shape.grid, shape.sizes
    stages, (first, last) = grid.stage_map.stages_of(pp_rank, grid.vp), grid.stage_map.ends
    numel = [shape.numel(stage) for stage in stages]
    state = (1 + shape.moments) * sizes.master * sum(numel) // grid.dp
    order = lists_of(shape).ranks[pp_rank]
    at_peak = _replay(order, [_chunk_pass(shape, stage) for stage in stages])
    is_borrower = shape.model.tied and first != last == pp_rank  # of the embedding's table
    borrowed = is_borrower * shape.model.table_rows * shape.model.hidden // grid.tp
    narrow = shape.reduced * sum(numel) * (shape.reduces_in_bf16 and grid.dp > 1)
    rows = 0
    if pp_rank in (first, last):
        rows = shape.num_micro_batches * BYTES_PER_TOKEN * sizes.tokens
    return RankMemory(
        pp_rank=pp_rank,
        parameters=sizes.param * (sum(numel) + borrowed),
        gradients=sizes.master * (sum(numel) + borrowed) + narrow,
        optimizer=state,
        activations=at_peak.activations,
        messages=_messages(shape, order),
        working=at_peak.working + rows,
        in_flight=at_peak.in_flight,
        snapshots=shape.snapshot_slots * state,
    )


def predict_all(shape: MemoryShape) -> list[RankMemory]:
    """The memory of every pipeline rank."""
    return [predict(shape, rank) for rank in range(shape.grid.pp)]


def worst(shape: MemoryShape) -> RankMemory:
    """The pipeline rank that needs most."""
    return max(predict_all(shape), key=lambda memory: memory.total)


@dataclass(frozen=True)
class _AtPeak:
    activations: int
    working: int
    in_flight: int


def _replay(order: tuple[Action, ...], passes: list[_ChunkPass]) -> _AtPeak:
    """Run the list, with each micro-batch's bytes; the most at once and what it consists of."""
    held: dict[tuple[int, int], int] = {}
    best = _AtPeak(0, 0, 0)
    for action in order:
        key, chunk = (action.chunk, action.micro_batch), passes[action.chunk]
        others = sum(held.values()) - held.get(key, 0)
        match action.kind:
            case Kind.FORWARD:
                peak, kept = chunk.forward, chunk.kept
            case Kind.BACKWARD:
                peak, kept = chunk.backward, 0
            case Kind.BACKWARD_INPUT:
                peak, kept = chunk.split_backward, chunk.waiting
            case Kind.BACKWARD_WEIGHT:
                peak, kept = chunk.weight, 0
            case _:
                continue
        own = min(peak, held.get(key, chunk.kept))
        if others + peak > best.activations + best.working:
            best = _AtPeak(others + own, peak - own, len(held.keys() | {key}))
        held[key] = kept
        if not kept:
            del held[key]
    return best


def _messages(shape: MemoryShape, order: tuple[Action, ...]) -> int:
    """Open receives and, for each direction and peer, the send that is kept until the next one."""
    receives = sum(action.kind in RECEIVES for action in order)
    lanes = len({(action.kind, action.peer) for action in order if action.kind in SENDS})
    return (min(POSTED, receives) + lanes) * shape.sizes.piece


@cache
def _chunk_pass(shape: MemoryShape, stage: int) -> _ChunkPass:
    whole, split = Passage(shape, stage), Passage(shape, stage)
    forward, kept = whole.forward()
    split.forward()
    backward, _ = whole.backward(deferred=False)
    split_backward, waiting = split.backward(deferred=True)
    weight = split.weight()
    return _ChunkPass(forward, kept, backward, split_backward, waiting, weight)


class Passage:
    """One micro-batch's way through one virtual stage.

    Each call returns its peak, and what is kept when it is over, in bytes. A forward comes first,
    then a backward, then, if that was deferred, the weight gradients.
    """

    def __init__(self, shape: MemoryShape, stage: int) -> None:
        self._ledger, self._tape, self._shape = Ledger(), Tape(), shape
        self._layers = Layers(shape, self._ledger)
        self._modes = [shape.recompute_of(layer) for layer in shape.layers_of(stage)]
        self._is_first = stage == 0
        self._is_last = stage == shape.grid.pp * shape.grid.vp - 1

    @property
    def sent(self) -> int:
        """Bytes that the rank has sent over tp until now, as ``LinearLayers.sent`` counts them."""
        return self._layers.sent

    def forward(self) -> tuple[int, int]:
        """Activations in, activations out."""
        layers, tape = self._layers, self._tape
        x = layers.embedding(tape) if self._is_first else layers.new(self._shape.sizes.piece)
        for mode in self._modes:
            x = layers.block(x, tape, mode)
        if self._is_last:
            layers.head(x, tape)
        del x
        return self._ledger.peak, self._ledger.now

    def backward(self, *, deferred: bool) -> tuple[int, int]:
        """Gradients in, gradients out; with ``deferred`` those of weights wait."""
        layers, tape = self._layers, self._tape
        tape.deferred = deferred
        self._ledger.restart_peak()
        if self._is_last:
            grad = layers.head_backward(tape)
        else:
            grad = layers.new(self._shape.sizes.piece)
        for mode in reversed(self._modes):
            grad = layers.block_backward(grad, tape, mode)
        if self._is_first:
            layers.embedding_backward(grad, tape)
        tape.flush()
        del grad
        return self._ledger.peak, self._ledger.now

    def weight(self) -> int:
        """Add the gradients that wait."""
        self._ledger.restart_peak()
        self._tape.finish()
        return self._ledger.peak


def lists_of(shape: MemoryShape) -> Schedule:
    """The complete lists of a step."""
    return _lists(shape.schedule, shape.grid.pp, shape.grid.vp, shape.num_micro_batches)


@cache
def _lists(name: str, pp: int, vp: int, num_micro_batches: int) -> Schedule:
    return lower(generate(name, pp=pp, vp=vp, num_micro_batches=num_micro_batches))
