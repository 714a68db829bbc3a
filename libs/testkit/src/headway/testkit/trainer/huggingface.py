"""Tiny models with random weights as ``transformers`` saves them, one for each variant."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
WHY_NOT = "transformers is not installed; `make setup-test` installs it"

_SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "vocab_size": 100,
    "max_position_embeddings": 32,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_GPT2 = {
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "vocab_size": 100,
    "n_positions": 32,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_GQA = {**_SIZES, "num_key_value_heads": 2}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_TYPES = ["full_attention", "sliding_attention", "full_attention"]

VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpt2": ("gpt2", _GPT2),
    "gpt2-untied": ("gpt2", {**_GPT2, "tie_word_embeddings": False, "n_inner": 72}),
    "llama": ("llama", _GQA),
    "llama3": ("llama", {**_GQA, "rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "llama-bias": ("llama", {**_SIZES, "attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", {**_GQA, "head_dim": 16}),
    "mistral": ("mistral", {**_GQA, "sliding_window": 6}),
    "mistral-full": ("mistral", {**_GQA, "sliding_window": None}),
    "qwen2": ("qwen2", _GQA),
    "qwen3": ("qwen3", {**_GQA, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-window": (
        "qwen3",
        {
            **_GQA,
            "head_dim": 12,
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": _TYPES,
        },
    ),
    "neox": ("gpt_neox", {**_SIZES, "rotary_pct": 0.5}),
    "neox-serial": (
        "gpt_neox",
        {**_SIZES, "use_parallel_residual": False, "rotary_pct": 1.0, "hidden_act": "gelu_new"},
    ),
}
"""Name -> ``model_type`` and the keys of its configuration."""


def save_tiny(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Save the variant with random weights, biases and norms, in one file; returns the model."""
    kind, keys = VARIANTS[name]
    transformers = _transformers()
    with quiet():
        torch.manual_seed(7)
        config = transformers.AutoConfig.for_model(kind, **keys)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():  # biases are zero, and norms one, at first
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model = model.to(dtype).eval()
        model.save_pretrained(folder)
    return model


def load_saved(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a folder, by ``AutoModelForCausalLM``."""
    with quiet():
        return (
            _transformers()
            .AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
            .eval()
        )


def _transformers() -> Any:
    import transformers  # takes seconds

    return transformers


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without progress bars and warnings of ``transformers``, which tests would fail on."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
