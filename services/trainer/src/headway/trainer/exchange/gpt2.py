"""GPT-2: learned positions, LayerNorm, GELU, biases everywhere, matrices stored as [in, out]."""

from __future__ import annotations

from typing import Any

from headway.trainer.config.architecture import Architecture
from headway.trainer.exchange.config_file import ConfigFile
from headway.trainer.exchange.family import Family
from headway.trainer.exchange.rules import (
    Rule,
    biased,
    padded,
    same,
    transposed,
    transposed_qkv,
    zeros,
)

GELUS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
}
"""Names of the activation there, and what they are here."""


def _settings(config: ConfigFile) -> dict[str, Any]:
    config.require("scale_attn_weights", True)
    activation = config.get("activation_function", str, "gelu_new")
    if activation not in GELUS:
        raise config.refused("activation_function", f"use one of {', '.join(GELUS)}")
    hidden, heads = config.need("n_embd"), config.need("n_head")
    return {
        "preset": "gpt2",
        "layers": config.need("n_layer"),
        "hidden": hidden,
        "heads": heads,
        "ffn": config.get("n_inner", int, 4 * hidden),
        "vocab_size": config.need("vocab_size"),
        "seq_len": config.get("n_positions", int, 1024),
        "norm_eps": config.get("layer_norm_epsilon", float, 1e-5),
        "mlp": GELUS[activation],
        "tied": config.get("tie_word_embeddings", bool, True),
        "init_std": config.get("initializer_range", float, 0.02),
    }


def _keys(model: Architecture) -> dict[str, Any]:
    return {
        "activation_function": "gelu_new" if model.mlp == "gelu-tanh" else "gelu",
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "initializer_range": model.init_std,
        "layer_norm_epsilon": model.norm_eps,
        "n_embd": model.hidden,
        "n_head": model.heads,
        "n_inner": model.ffn,
        "n_layer": model.layers,
        "n_positions": model.seq_len,
        "tie_word_embeddings": model.tied,
        "vocab_size": model.vocab_size,
    }


def _rules(model: Architecture) -> list[Rule]:
    wide, rows = model.hidden, model.vocab_size
    table = (model.padded_vocab_size, wide)
    rules = [
        padded("embedding.weight", "transformer.wte.weight", rows, table),
        same("embedding.positions", "transformer.wpe.weight", (model.seq_len, wide)),
    ]
    for layer in range(model.layers):
        rules += _block(model, f"layers.{layer}", f"transformer.h.{layer}")
    rules += _norm("final_norm", "transformer.ln_f", wide)
    if not model.tied:
        rules.append(padded("head.weight", "lm_head.weight", rows, table))
    return rules


def _block(model: Architecture, ours: str, theirs: str) -> list[Rule]:
    wide, qkv, there = model.hidden, f"{ours}.attention.qkv", f"{theirs}.attn.c_attn"
    rules = _norm(f"{ours}.norm1", f"{theirs}.ln_1", wide)
    rules.append(transposed_qkv(f"{qkv}.weight", f"{there}.weight", model, matrix=True))
    if model.bias == "none":
        rules.append(zeros(f"{there}.bias", (model.qkv_width,)))
    else:
        rules.append(transposed_qkv(f"{qkv}.bias", f"{there}.bias", model, matrix=False))
    parts = (
        ("attention.out", "attn.c_proj", (wide, wide)),
        ("mlp.up", "mlp.c_fc", (model.ffn, wide)),
        ("mlp.down", "mlp.c_proj", (wide, model.ffn)),
    )
    rules += biased(model, ours, theirs, parts, transposed)
    return rules + _norm(f"{ours}.norm2", f"{theirs}.ln_2", wide)


def _norm(ours: str, theirs: str, width: int) -> list[Rule]:
    parts = ("weight", "bias")
    return [same(f"{ours}.{part}", f"{theirs}.{part}", (width,)) for part in parts]


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    _settings,
    _keys,
    _rules,
    {
        "norm": ("layernorm",),
        "mlp": ("gelu", "gelu-tanh"),
        "positions": ("learned",),
        "block": ("serial",),
        "qk_norm": (False,),
        "window": (None,),
    },
    is_plain=True,
    prefix="transformer.",
    ignored=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
)
