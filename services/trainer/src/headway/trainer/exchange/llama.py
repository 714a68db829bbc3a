"""Llama and what shares its names: Mistral, Qwen2 and Qwen3."""

from __future__ import annotations

from typing import Any

from headway.trainer.config.architecture import Architecture
from headway.trainer.exchange.config_file import ConfigFile
from headway.trainer.exchange.family import Family
from headway.trainer.exchange.rope import rope_keys, rope_settings
from headway.trainer.exchange.rules import Rule, head_norm, padded, qkv, same, zeros

_NEEDS: dict[str, tuple[object, ...]] = {
    "norm": ("rmsnorm",),
    "mlp": ("swiglu",),
    "positions": ("rotary",),
    "rope_fraction": (1.0,),
    "block": ("serial",),
}
_CONSTANTS = (r"(model\.layers\.\d+\.self_attn|model)\.rotary_emb\.inv_freq",)


# ---- configuration ------------------------------------------------------------------------------
def _settings(config: ConfigFile, preset: str, head_dim: int | None = None) -> dict[str, Any]:
    """What all of the family read alike."""
    if config.get("hidden_act", str, "silu") not in ("silu", "swish"):
        raise config.refused("hidden_act", "only silu is supported")
    heads, hidden = config.need("num_attention_heads"), config.need("hidden_size")
    settings = {
        "preset": preset,
        "layers": config.need("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads", int, heads),
        "head_dim": config.get("head_dim", int, head_dim or hidden // heads),
        "ffn": config.need("intermediate_size"),
        "vocab_size": config.need("vocab_size"),
        "seq_len": config.need("max_position_embeddings"),
        "norm_eps": config.get("rms_norm_eps", float, 1e-6),
        "tied": config.get("tie_word_embeddings", bool, False),
        "init_std": config.get("initializer_range", float, 0.02),
        **rope_settings(config),
    }
    if settings["rope_fraction"] != 1.0:
        raise config.refused("partial_rotary_factor", "only 1 is supported in this family")
    return settings


def _llama_settings(config: ConfigFile) -> dict[str, Any]:
    attention = config.get("attention_bias", bool, False)
    if attention != config.get("mlp_bias", bool, False):
        raise config.refused("attention_bias", "biases in attention and MLP only go together")
    return {**_settings(config, "llama"), "bias": "all" if attention else "none"}


def _mistral_settings(config: ConfigFile) -> dict[str, Any]:
    settings = _settings(config, "mistral")
    width = config.get("sliding_window", int, 0)
    return {**settings, **_window(width, [], settings)}


def _qwen2_settings(config: ConfigFile) -> dict[str, Any]:
    settings = _settings(config, "llama")
    return {**settings, "bias": "qkv", **_layered_window(config, settings)}


def _qwen3_settings(config: ConfigFile) -> dict[str, Any]:
    config.require("attention_bias", False)
    settings = _settings(config, "qwen3", head_dim=128)
    return {**settings, "qk_norm": True, **_layered_window(config, settings)}


def _layered_window(config: ConfigFile, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of Qwen's attention window, empty without one.

    Qwen lists the kind of each layer, or gives the number of the first layer that has a window.
    """
    if not config.get("use_sliding_window", bool, False):
        return {}
    layers, width = settings["layers"], config.get("sliding_window", int, 4096)
    kinds = config.get("layer_types", list, [])
    first = config.get("max_window_layers", int, 28)
    if not kinds:
        kinds = ["sliding_attention" if n >= first else "full_attention" for n in range(layers)]
    known = {"full_attention", "sliding_attention"}
    if len(kinds) != layers or not all(isinstance(kind, str) and kind in known for kind in kinds):
        raise config.refused("layer_types", f"use {layers} of full_attention, sliding_attention")
    limited = [n for n, kind in enumerate(kinds) if kind == "sliding_attention"]
    return _window(width, limited, settings) if limited else {}


def _window(width: int, layers: list[int], settings: dict[str, Any]) -> dict[str, Any]:
    """A window as long as the longest sequence, or of 0, limits nothing."""
    if not 0 < width < settings["seq_len"]:
        return {}
    every = len(layers) in (0, settings["layers"])
    return {"window": width, "window_layers": () if every else tuple(layers)}


def _keys(model: Architecture) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "initializer_range": model.init_std,
        "intermediate_size": model.ffn,
        "max_position_embeddings": model.seq_len,
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tied,
        "vocab_size": model.vocab_size,
        **rope_keys(model),
    }


def _llama_keys(model: Architecture) -> dict[str, Any]:
    has_bias = model.bias == "all"
    return {**_keys(model), "attention_bias": has_bias, "mlp_bias": has_bias}


def _mistral_keys(model: Architecture) -> dict[str, Any]:
    return {**_keys(model), "sliding_window": model.window}


def _qwen_keys(model: Architecture) -> dict[str, Any]:
    limited = [model.window_of(layer) is not None for layer in range(model.layers)]
    return {
        **_keys(model),
        "attention_bias": False,
        "use_sliding_window": any(limited),
        "sliding_window": model.window,
        "max_window_layers": limited.index(True) if any(limited) else model.layers,
        "layer_types": [
            "sliding_attention" if is_limited else "full_attention" for is_limited in limited
        ],
    }


# ---- tensors ------------------------------------------------------------------------------------
def _rules(model: Architecture) -> list[Rule]:
    table = (model.padded_vocab_size, model.hidden)
    rules = [padded("embedding.weight", "model.embed_tokens.weight", model.vocab_size, table)]
    for layer in range(model.layers):
        rules += _block(model, f"layers.{layer}", f"model.layers.{layer}")
    rules.append(same("final_norm.weight", "model.norm.weight", (model.hidden,)))
    if not model.tied:
        rules.append(padded("head.weight", "lm_head.weight", model.vocab_size, table))
    return rules


def _block(model: Architecture, ours: str, theirs: str) -> list[Rule]:
    wide, heads, attention = model.hidden, model.heads_width, f"{theirs}.self_attn"
    maps = [
        ("attention.out", "self_attn.o_proj", (wide, heads)),
        ("mlp.gate", "mlp.gate_proj", (model.ffn, wide)),
        ("mlp.up", "mlp.up_proj", (model.ffn, wide)),
        ("mlp.down", "mlp.down_proj", (wide, model.ffn)),
    ]
    rules = [same(f"{ours}.norm1.weight", f"{theirs}.input_layernorm.weight", (wide,))]
    projections = [f"{attention}.{part}_proj" for part in "qkv"]
    qkv_name = f"{ours}.attention.qkv"
    rules.append(qkv(f"{qkv_name}.weight", [f"{p}.weight" for p in projections], model, (wide,)))
    if model.bias != "none":
        rules.append(qkv(f"{qkv_name}.bias", [f"{p}.bias" for p in projections], model, ()))
    if model.qk_norm:
        for part in "qk":
            norm = f"attention.{part}_norm.weight"
            rules.append(head_norm(f"{ours}.{norm}", f"{attention}.{part}_norm.weight", model))
    for name, their_name, shape in maps:
        rules.append(same(f"{ours}.{name}.weight", f"{theirs}.{their_name}.weight", shape))
        if model.bias == "all":
            rules.append(same(f"{ours}.{name}.bias", f"{theirs}.{their_name}.bias", shape[:1]))
    norm2 = f"{theirs}.post_attention_layernorm.weight"
    return [*rules, same(f"{ours}.norm2.weight", norm2, (wide,))]


def _qwen2_rules(model: Architecture) -> list[Rule]:
    """Qwen2 always has biases of queries, keys and values."""
    rules = _rules(model)
    if model.bias == "none":
        kv = model.kv_heads * model.head_dim
        sizes = {"q": model.heads_width, "k": kv, "v": kv}
        rules += [
            zeros(f"model.layers.{layer}.self_attn.{part}_proj.bias", (size,))
            for layer in range(model.layers)
            for part, size in sizes.items()
        ]
    return rules


LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    _llama_settings,
    _llama_keys,
    _rules,
    {**_NEEDS, "qk_norm": (False,), "window": (None,), "bias": ("none", "all")},
    ignored=_CONSTANTS,
)
MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    _mistral_settings,
    _mistral_keys,
    _rules,
    {**_NEEDS, "qk_norm": (False,), "window_layers": ((),), "bias": ("none",)},
    ignored=_CONSTANTS,
)
QWEN2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    _qwen2_settings,
    _qwen_keys,
    _qwen2_rules,
    {**_NEEDS, "qk_norm": (False,), "bias": ("qkv", "none")},
    ignored=_CONSTANTS,
)
QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    _qwen3_settings,
    _qwen_keys,
    _rules,
    {**_NEEDS, "qk_norm": (True,), "bias": ("none",)},
    ignored=_CONSTANTS,
)
