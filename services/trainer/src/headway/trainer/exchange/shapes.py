"""Names and global shapes of a model's parameters; free of torch."""

from __future__ import annotations

from collections.abc import Iterator

from headway.trainer.config.architecture import Architecture

Shape = tuple[int, ...]


def parameter_shapes(model: Architecture) -> dict[str, Shape]:
    """Every parameter of a model of Headway's own blocks, in the order of the layers."""
    return dict(_all(model))


def _all(model: Architecture) -> Iterator[tuple[str, Shape]]:
    table = (model.padded_vocab_size, model.hidden)
    yield "embedding.weight", table
    if model.positions == "learned":
        yield "embedding.positions", (model.seq_len, model.hidden)
    for layer in range(model.layers):
        yield from ((f"layers.{layer}.{name}", shape) for name, shape in _layer(model))
    yield from _norm(model, "final_norm")
    if not model.tied:
        yield "head.weight", table


def _layer(model: Architecture) -> Iterator[tuple[str, Shape]]:
    for norm in ("norm1", "norm2") if model.norms == 2 else ("norm",):
        yield from _norm(model, norm)
    has_all = model.bias == "all"
    yield from _linear("attention.qkv", model.qkv_width, model.hidden, bias=model.bias != "none")
    if model.qk_norm:
        yield "attention.q_norm.weight", (model.head_dim,)
        yield "attention.k_norm.weight", (model.head_dim,)
    yield from _linear("attention.out", model.hidden, model.heads_width, bias=has_all)
    for name in ("gate", "up") if model.is_gated else ("up",):
        yield from _linear(f"mlp.{name}", model.ffn, model.hidden, bias=has_all)
    yield from _linear("mlp.down", model.hidden, model.ffn, bias=has_all)


def _norm(model: Architecture, name: str) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (model.hidden,)
    if model.norm == "layernorm":
        yield f"{name}.bias", (model.hidden,)


def _linear(name: str, out: int, wide: int, *, bias: bool) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (out, wide)
    if bias:
        yield f"{name}.bias", (out,)
