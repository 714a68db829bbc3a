"""Keeps a chunk's parameters, gradients and optimizer state in a few flat buffers.

    params  [padded]     compute type; filled by the all-gather of all data-parallel ranks' pieces
    grads   [padded]     master type; weight gradients of every micro-batch are added here
    state   [(1 + moments) * shard]  master type; the master weights and the optimizer's moments of
                         this rank's piece, which is what a snapshot copies

The optimizer state is sharded over data parallelism, gradients and parameters are not (ZeRO stage
1, arXiv 1910.02054): rank r of dp owns elements [start, stop) of the padded buffer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import torch
from headway.trainer.state.initial_weights import Drawing
from headway.trainer.state.params import ParamSpec, Precision

ALIGNMENT = 64
"""In elements; parameters and shards start at multiples of it, at least a
cache line in any type."""
GPU_BLOCK = 1 << 26
"""Elements that a GPU sums at a time: kernels of some releases of torch count them in 32 bits."""


@dataclass(frozen=True)
class Placed:
    """A parameter and its place [start, stop) in the flat buffers."""

    spec: ParamSpec
    start: int
    stop: int


@dataclass(frozen=True)
class Span:
    """Elements [start, stop) of a shard with the same weight decay setting."""

    start: int
    stop: int
    weight_decay: bool


class FlatChunk:
    """The memory of one model chunk on one rank. Padding elements are zero and stay zero."""

    def __init__(
        self,
        specs: Sequence[ParamSpec],
        *,
        dp_rank: int,
        dp_size: int,
        precision: Precision,
        moments: Sequence[str] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        """``moments`` are the names of what the optimizer keeps for each parameter."""
        self.dp_rank, self.dp_size, self.precision = dp_rank, dp_size, precision
        self.device = torch.device(device)
        self.placed = _place(specs)
        used = self.placed[-1].stop if self.placed else 0
        self.shard_numel = _round_up(used, ALIGNMENT * dp_size) // dp_size
        self.numel = self.shard_numel * dp_size
        self.start, self.stop = dp_rank * self.shard_numel, (dp_rank + 1) * self.shard_numel
        self.replicated = _replicated_range(self.placed)
        self.copied = [place for place in self.placed if place.spec.copies > 1]
        """Pieces that some of the tensor-parallel ranks hold copies of."""
        names = ("master", *moments)
        self.state = torch.zeros(
            len(names) * self.shard_numel, dtype=precision.master_dtype, device=self.device
        )
        self.fields = dict(zip(names, self.state.view(len(names), -1).unbind(), strict=True))
        """This rank's piece [shard] of each: ``master``, then the moments; views of ``state``."""
        self.master = self.fields["master"]
        self.spans = tuple(_spans(self.placed, self.start, self.stop))
        self._counted = _counted(self.placed, self.start, self.stop)
        self.renew()

    def renew(self) -> None:
        """Replace ``params``, ``grads`` and ``grad_shard`` by fresh zeroed memory; ``state`` stays.

        After an abort an abandoned collective may still write to the old buffers, which it keeps
        alive. Nothing else does, if ``Chunk.unbind`` came before: then both are never there at
        once. ``Chunk.bind`` must follow.
        """
        nothing = torch.empty(0, device=self.device)
        self.params = self.grads = self.grad_shard = self.param_shard = nothing
        self.params = torch.zeros(self.numel, dtype=self.precision.param_dtype, device=self.device)
        self.grads = torch.zeros(self.numel, dtype=self.precision.master_dtype, device=self.device)
        self.grad_shard = self.grads[self.start : self.stop]
        self.param_shard = self.params[self.start : self.stop]

    def views(self, *names: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``(data, grad)`` of one parameter in its local shape, or of several neighbours.

        Neighbours are returned as one, joined along the first dimension.

        Raises:
            ValueError: they are not neighbours in this order.
        """
        by_name: dict[str, list[Placed]] = defaultdict(list)
        for place in self.placed:
            by_name[place.spec.name].append(place)
        places = [place for name in names for place in by_name[name]]
        if any(a.stop != b.start for a, b in pairwise(places)):
            raise ValueError(f"{', '.join(names)} are not neighbours in memory")
        where, rest = slice(places[0].start, places[-1].stop), places[0].spec.shape[1:]
        return self.params[where].view(-1, *rest), self.grads[where].view(-1, *rest)

    def zero_grads(self) -> None:
        """Begin a step: zero the gradients."""
        self.grads.zero_()

    def norm_square(self) -> torch.Tensor:
        """Return the sum of squares of the reduced gradient shard, an fp64 scalar.

        Over tp, pp and dp these add up to the square of the global norm, because elements that
        several ranks of tp hold are counted on one of them.
        """
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for run in self._counted:
            total += square_sum(self.grad_shard[run])
        return total

    def is_state_finite(self) -> bool:
        """Whether no element of ``state`` is infinite or NaN.

        It is checked by blocks, because torch makes a copy in fp64 of what it sums in fp64.
        """
        size = 1 << 20 if self.device.type == "cpu" else 1 << 26
        blocks = self.state.split(size)  # type: ignore[no-untyped-call]
        return all(math.isfinite(float(block.sum(dtype=torch.float64))) for block in blocks)

    def load_master_from_init(
        self, seed: int, progress: Callable[[int], object] = lambda _: None
    ) -> None:
        """Write this rank's piece of the initial weights into ``master`` and zero the moments.

        ``progress`` is called with the bytes of the state that each piece (at most 256 Ki elements)
        has completed; what it raises ends the drawing within moments.
        """
        self.state.zero_()
        with Drawing(seed) as drawing:
            for place, low, high in self.owned():
                first = place.start - self.start
                for at, drawn in drawing.values(place.spec, low - place.start, high - place.start):
                    values = torch.from_numpy(drawn)
                    self.master[first + at : first + at + len(values)].copy_(values)
                    progress(len(self.fields) * len(values) * self.master.element_size())

    def load_master_from(
        self,
        read: Callable[[str, tuple[int, ...]], torch.Tensor],
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Write this rank's piece of whole weights into ``master`` and zero the moments.

        ``read`` returns a whole parameter, by name and global shape; ``progress`` is called with
        the bytes of the state that each one has completed.
        """
        self.state.zero_()
        for place, low, high in self.owned():
            spec, first = place.spec, low - self.start
            whole = read(spec.name, spec.global_shape)
            if spec.tp_dim is not None:
                whole = whole.chunk(spec.tp_size, spec.tp_dim)[spec.tp_rank]
            piece = whole.reshape(-1)[spec.skipped + low - place.start :][: high - low]
            self.master[first : first + len(piece)].copy_(piece)
            progress(len(self.fields) * len(piece) * self.master.element_size())

    def cast_shard_to_params(self) -> None:
        """Round ``master`` to the compute type, into this rank's slice of ``params``."""
        self.param_shard.copy_(self.master)

    def layout_entries(self, base: int = 0) -> list[dict[str, Any]]:
        """Return where each tensor's piece is in a snapshot.

        The snapshot's copy of ``state`` starts at byte ``base``. There is one entry for each field
        and each parameter that this shard touches; ``flat_start`` and ``flat_stop`` count elements
        in the flattened piece ``tp_rank`` of the tensor. ``copy`` is there for elements that some
        of the ranks of tp hold too; one of them has copy 0.
        """
        item = self.state.element_size()
        dtype = str(self.precision.master_dtype).removeprefix("torch.")
        return [
            {
                "name": place.spec.name,
                "field": field,
                "dtype": dtype,
                "offset": base + (index * self.shard_numel + low - self.start) * item,
                "nbytes": (high - low) * item,
                "global_shape": list(place.spec.global_shape),
                "tp_dim": place.spec.tp_dim,
                "tp_rank": place.spec.tp_rank,
                "tp_size": place.spec.tp_size,
                "flat_start": place.spec.skipped + low - place.start,
                "flat_stop": place.spec.skipped + high - place.start,
                **({"copy": place.spec.copy} if place.spec.copies > 1 else {}),
            }
            for index, field in enumerate(self.fields)
            for place, low, high in self.owned()
        ]

    def owned(self) -> Iterator[tuple[Placed, int, int]]:
        """Parameters that overlap this rank's shard, with the overlap in flat positions."""
        for place in self.placed:
            low, high = max(place.start, self.start), min(place.stop, self.stop)
            if low < high:
                yield place, low, high


def square_sum(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares in fp64.

    A GPU's norm of a list of tensors widens each element as it reads it, where every other sum in
    fp64, ``torch.linalg.vector_norm`` included, first makes a wide copy. A CPU has only those, and
    is 8 times faster if the copy is of a block that fits its cache.
    """
    if values.device.type != "cpu":
        norms = torch._foreach_norm(values.split(GPU_BLOCK), 2, torch.float64)  # type: ignore[no-untyped-call]
        return torch.stack(norms).square().sum()
    total = torch.zeros((), dtype=torch.float64)
    for block in values.split(1 << 16):  # type: ignore[no-untyped-call]
        wide = block.double()
        total += torch.dot(wide, wide)
    return total


def _round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def _place(specs: Sequence[ParamSpec]) -> tuple[Placed, ...]:
    placed, position = [], 0
    for spec in specs:
        placed.append(Placed(spec, position, position + spec.numel))
        position += spec.numel
        if not spec.joins_next:
            position = _round_up(position, ALIGNMENT)
    return tuple(placed)


def _replicated_range(placed: Sequence[Placed]) -> tuple[int, int]:
    """Return the one segment of tp-replicated parameters.

    Raises:
        ValueError: they are not in one piece.
    """
    inside = [index for index, place in enumerate(placed) if place.spec.is_replicated]
    if not inside:
        return 0, 0
    if inside != list(range(inside[0], inside[-1] + 1)):
        raise ValueError("replicated parameters are not adjacent; order the specs so that they are")
    return placed[inside[0]].start, placed[inside[-1]].stop


def _spans(placed: Sequence[Placed], start: int, stop: int) -> Iterator[Span]:
    """Split [start, stop) into runs of equal decay."""
    for decays, run in _runs(placed, start, stop, lambda spec: spec.weight_decay):
        yield Span(run.start, run.stop, decays)


def _counted(placed: Sequence[Placed], start: int, stop: int) -> list[slice]:
    """The runs of [start, stop) that this rank counts."""
    runs = _runs(placed, start, stop, lambda spec: spec.is_counted)
    return [run for is_counted, run in runs if is_counted]


def _runs(
    placed: Sequence[Placed], start: int, stop: int, key: Callable[[ParamSpec], bool]
) -> Iterator[tuple[bool, slice]]:
    """Split [start, stop) into runs of equal ``key``; the gap after a parameter belongs to it."""
    low = 0
    for value, group in groupby(placed, lambda place: key(place.spec)):
        last = list(group)[-1]
        following = placed.index(last) + 1
        high = placed[following].start if following < len(placed) else max(stop, last.stop)
        if max(low, start) < min(high, stop):
            yield value, slice(max(low, start) - start, min(high, stop) - start)
        low = high
