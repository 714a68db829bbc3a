"""How one parameter is made of tensors of a Hugging Face file, and the exact inverse.

A rule moves elements and never computes with them, so that both directions are exact to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from headway.trainer.config.architecture import Architecture

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """One parameter here and the tensors there that hold its elements.

    ``join`` takes the tensors of ``theirs`` in order and returns the parameter, ``split`` is its
    inverse. A rule without a ``name`` stands for tensors that the other side needs and the model
    here does not have: ``split`` takes an empty tensor and makes them.
    """

    name: str
    shape: Shape
    theirs: Mapping[str, Shape]
    join: Callable[[Sequence[torch.Tensor]], torch.Tensor]
    split: Callable[[torch.Tensor], Sequence[torch.Tensor]]


def same(name: str, theirs: str, shape: Shape) -> Rule:
    """Return the rule for a tensor with the same elements in the same order."""
    return Rule(name, shape, {theirs: shape}, lambda given: given[0], lambda ours: [ours])


def transposed(name: str, theirs: str, shape: Shape) -> Rule:
    """A matrix that is stored as [in, out] there; ``shape`` is [out, in]."""
    return Rule(
        name,
        shape,
        {theirs: (shape[1], shape[0])},
        lambda given: given[0].t().contiguous(),
        lambda ours: [ours.t().contiguous()],
    )


def padded(name: str, theirs: str, rows: int, shape: Shape) -> Rule:
    """The first ``rows`` rows; the others, which no token uses, are zero here and absent there."""

    def join(given: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([given[0], given[0].new_zeros(shape[0] - rows, *shape[1:])])

    inner = (rows, *shape[1:])
    return Rule(name, shape, {theirs: inner}, join, lambda ours: [ours[:rows].contiguous()])


def shared(name: str, theirs: Sequence[str], shape: Shape) -> Rule:
    """One parameter here that several equal tensors there stand for."""

    def split(ours: torch.Tensor) -> Sequence[torch.Tensor]:
        return [ours] * len(theirs)

    return Rule(name, shape, dict.fromkeys(theirs, shape), lambda given: given[0], split)


def zeros(theirs: str, shape: Shape) -> Rule:
    """A bias that the model here does not have."""
    return Rule("", (), {theirs: shape}, lambda given: given[0], lambda _: [torch.zeros(shape)])


def biased(
    model: Architecture,
    ours: str,
    theirs: str,
    parts: Sequence[tuple[str, str, Shape]],
    matrix: Callable[[str, str, Shape], Rule] = same,
) -> list[Rule]:
    """Rules for matrices that have biases there in any case, and here if ``model.bias`` is all.

    ``parts``: name here, name there, [out, in]. ``matrix`` makes the rule of a weight.
    """
    rules = []
    for name, their_name, shape in parts:
        rules.append(matrix(f"{ours}.{name}.weight", f"{theirs}.{their_name}.weight", shape))
        bias, width = f"{theirs}.{their_name}.bias", shape[:1]
        has_one = model.bias == "all"
        rules.append(same(f"{ours}.{name}.bias", bias, width) if has_one else zeros(bias, width))
    return rules


# ---- attention ----------------------------------------------------------------------------------
def qkv(name: str, theirs: Sequence[str], model: Architecture, rest: Shape) -> Rule:
    """Return the rule for separate queries, keys and values on the other side.

    Here the rows of each head of keys and values are together: its queries, the key, the value.
    ``rest`` is the shape of a row.
    """
    kv, each, width = model.kv_heads, model.queries_per_kv, model.head_dim
    heads = (model.heads, kv, kv)
    turned = rotated(model)

    def join(given: Sequence[torch.Tensor]) -> torch.Tensor:
        q, k, v = (part.view(kv, -1, width, *rest) for part in given)
        parts = [interleave(q, 2, turned), interleave(k, 2, turned), v]
        return torch.cat(parts, 1).view(-1, *rest)

    def split(ours: torch.Tensor) -> Sequence[torch.Tensor]:
        q, k, v = torch.split(ours.view(kv, each + 2, width, *rest), [each, 1, 1], 1)
        parts = (separate(q, 2, turned), separate(k, 2, turned), v)
        return [part.reshape(-1, *rest) for part in parts]

    shapes = [(number * width, *rest) for number in heads]
    return Rule(name, (model.qkv_width, *rest), dict(zip(theirs, shapes, strict=True)), join, split)


def joined_qkv(name: str, theirs: str, model: Architecture, rest: Shape) -> Rule:
    """Return the rule for queries, keys and values that are joined per head on both sides.

    The other side keeps each head's query, key and value together as well, so that the two sides
    differ only in rotary pairs (GPT-NeoX, one head of keys per head of queries). See ``qkv``.
    """
    shape, turned = (model.qkv_width, *rest), rotated(model)

    def move(
        tensor: torch.Tensor, order: Callable[[torch.Tensor, int, int], torch.Tensor]
    ) -> torch.Tensor:
        heads = tensor.view(model.heads, 3, model.head_dim, *rest)
        return torch.cat([order(heads[:, :2], 2, turned), heads[:, 2:]], 1).view(shape)

    return Rule(
        name,
        shape,
        {theirs: shape},
        lambda given: move(given[0], interleave),
        lambda ours: [move(ours, separate)],
    )


def transposed_qkv(name: str, theirs: str, model: Architecture, *, matrix: bool) -> Rule:
    """Return the rule for one tensor with all queries, then all keys, then all values (GPT-2).

    The other side stores it as [in, out] if it is a ``matrix``; otherwise it is the bias. See
    ``qkv``.
    """
    rest = (model.hidden,) if matrix else ()
    inner = qkv(name, ("q", "k", "v"), model, rest)
    sizes = [shape[0] for shape in inner.theirs.values()]

    def join(given: Sequence[torch.Tensor]) -> torch.Tensor:
        whole = given[0].t() if matrix else given[0]
        return inner.join([part.contiguous() for part in torch.split(whole, sizes)])

    def split(ours: torch.Tensor) -> Sequence[torch.Tensor]:
        whole = torch.cat(list(inner.split(ours)))
        return [whole.t().contiguous() if matrix else whole]

    there = (model.hidden, model.qkv_width) if matrix else (model.qkv_width,)
    return Rule(name, inner.shape, {theirs: there}, join, split)


def head_norm(name: str, theirs: str, model: Architecture) -> Rule:
    """The weight of a norm over a head's width, which follows the order of rotary pairs."""
    turned = rotated(model)
    return Rule(
        name,
        (model.head_dim,),
        {theirs: (model.head_dim,)},
        lambda given: interleave(given[0], 0, turned),
        lambda ours: [separate(ours, 0, turned)],
    )


# ---- rotary pairs -------------------------------------------------------------------------------
def rotated(model: Architecture) -> int:
    """Elements of a head that are rotated, 0 without rotary positions."""
    return round(model.rope_fraction * model.head_dim) if model.positions == "rotary" else 0


def interleave(tensor: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """Pairs (i, i + count/2) become neighbours, in the first ``count`` elements along ``dim``."""
    return _turned(tensor, dim, (2, count // 2))


def separate(tensor: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """The inverse of ``interleave``."""
    return _turned(tensor, dim, (count // 2, 2))


def _turned(tensor: torch.Tensor, dim: int, grid: tuple[int, int]) -> torch.Tensor:
    count = grid[0] * grid[1]
    order = torch.arange(tensor.shape[dim])
    order[:count] = order[:count].view(grid).t().reshape(-1)
    return tensor.index_select(dim, order)


def by_name(rules: Sequence[Rule]) -> Iterator[tuple[str, Rule]]:
    """(their name, rule) of every tensor on the other side, in order."""
    for rule in rules:
        for name in rule.theirs:
            yield name, rule
