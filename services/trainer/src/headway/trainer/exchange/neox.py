"""GPT-NeoX: rotary positions in a part of each head, LayerNorm, GELU, parallel or serial blocks."""

from __future__ import annotations

from typing import Any

from headway.trainer.config.architecture import Architecture
from headway.trainer.exchange.config_file import ConfigFile
from headway.trainer.exchange.family import Family
from headway.trainer.exchange.gpt2 import GELUS
from headway.trainer.exchange.rope import rope_keys, rope_settings
from headway.trainer.exchange.rules import Rule, biased, joined_qkv, padded, shared, zeros


def _settings(config: ConfigFile) -> dict[str, Any]:
    config.require("attention_bias", True)
    activation = config.get("hidden_act", str, "gelu")
    if activation not in GELUS:
        raise config.refused("hidden_act", f"use one of {', '.join(GELUS)}")
    is_parallel = config.get("use_parallel_residual", bool, True)
    return {
        "preset": "neox",
        "layers": config.need("num_hidden_layers"),
        "hidden": config.need("hidden_size"),
        "heads": config.need("num_attention_heads"),
        "ffn": config.need("intermediate_size"),
        "vocab_size": config.need("vocab_size"),
        "seq_len": config.need("max_position_embeddings"),
        "norm_eps": config.get("layer_norm_eps", float, 1e-5),
        "mlp": GELUS[activation],
        "tied": config.get("tie_word_embeddings", bool, False),
        "block": "parallel" if is_parallel else "serial",
        "norms": 2,
        "init_std": config.get("initializer_range", float, 0.02),
        **rope_settings(
            config, theta="rotary_emb_base", fraction="rotary_pct", default_fraction=0.25
        ),
    }


def _keys(model: Architecture) -> dict[str, Any]:
    rope = rope_keys(model)
    return {
        "attention_bias": True,
        "attention_dropout": 0.0,
        "hidden_act": "gelu_new" if model.mlp == "gelu-tanh" else "gelu",
        "hidden_dropout": 0.0,
        "hidden_size": model.hidden,
        "initializer_range": model.init_std,
        "intermediate_size": model.ffn,
        "layer_norm_eps": model.norm_eps,
        "max_position_embeddings": model.seq_len,
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "rotary_emb_base": rope["rope_theta"],
        "rotary_pct": model.rope_fraction,
        "rope_scaling": rope["rope_scaling"],
        "tie_word_embeddings": model.tied,
        "use_parallel_residual": model.block == "parallel",
        "vocab_size": model.vocab_size,
    }


def _rules(model: Architecture) -> list[Rule]:
    wide, rows = model.hidden, model.vocab_size
    table = (model.padded_vocab_size, wide)
    rules = [padded("embedding.weight", "gpt_neox.embed_in.weight", rows, table)]
    for layer in range(model.layers):
        rules += _block(model, f"layers.{layer}", f"gpt_neox.layers.{layer}")
    rules += _norm("final_norm", ["gpt_neox.final_layer_norm"], wide)
    if not model.tied:
        rules.append(padded("head.weight", "embed_out.weight", rows, table))
    return rules


def _block(model: Architecture, ours: str, theirs: str) -> list[Rule]:
    wide, qkv, there = model.hidden, f"{ours}.attention.qkv", f"{theirs}.attention.query_key_value"
    first, second = f"{theirs}.input_layernorm", f"{theirs}.post_attention_layernorm"
    if model.norms == 1:
        rules = _norm(f"{ours}.norm", [first, second], wide)
    else:
        rules = _norm(f"{ours}.norm1", [first], wide) + _norm(f"{ours}.norm2", [second], wide)
    rules.append(joined_qkv(f"{qkv}.weight", f"{there}.weight", model, (wide,)))
    if model.bias == "none":
        rules.append(zeros(f"{there}.bias", (model.qkv_width,)))
    else:
        rules.append(joined_qkv(f"{qkv}.bias", f"{there}.bias", model, ()))
    parts = (
        ("attention.out", "attention.dense", (wide, wide)),
        ("mlp.up", "mlp.dense_h_to_4h", (model.ffn, wide)),
        ("mlp.down", "mlp.dense_4h_to_h", (wide, model.ffn)),
    )
    return rules + biased(model, ours, theirs, parts)


def _norm(ours: str, theirs: list[str], width: int) -> list[Rule]:
    parts = ("weight", "bias")
    return [shared(f"{ours}.{part}", [f"{t}.{part}" for t in theirs], (width,)) for part in parts]


NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    _settings,
    _keys,
    _rules,
    {
        "norm": ("layernorm",),
        "mlp": ("gelu", "gelu-tanh"),
        "positions": ("rotary",),
        "block": ("serial", "parallel"),
        "qk_norm": (False,),
        "window": (None,),
    },
    is_plain=True,
    ignored=(
        r"gpt_neox\.layers\.\d+\.attention\.(masked_)?bias",
        r"(gpt_neox\.layers\.\d+\.attention|gpt_neox)\.rotary_emb\.inv_freq",
    ),
)
