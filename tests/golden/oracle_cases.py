"""Small Hugging Face models whose training is known to 1e-9 from ``transformers`` in fp64.

A folder of one is written here from a seed, without ``transformers``: the numbers that training it
must give lie beside the tests, and ``make_oracle.py`` computes them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

SEQ_LEN, STEPS, LR, WEIGHT_DECAY = 12, 3, 4e-3, 0.1
_SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 64,
    "max_position_embeddings": SEQ_LEN,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}


@dataclass(frozen=True)
class Case:
    """A model, its batches, and the layouts under which it is trained."""

    layouts: tuple[dict[str, Any], ...]
    kind: str = "llama"
    keys: dict[str, Any] = field(default_factory=dict)
    """Keys of the case's ``config.json`` that replace the common sizes."""
    sequences: int = 8
    """In a step; micro-batches have one each."""
    clip: float = 1.0
    counted: tuple[int, ...] = ()
    """See ``SyntheticSource``."""

    @property
    def config(self) -> dict[str, Any]:
        """The ``config.json``."""
        return {"model_type": self.kind, **_SIZES, **self.keys}

    def run(self, model: dict[str, Any], first: Path, layout: dict[str, Any]) -> dict[str, Any]:
        """The configuration of a run of ``model`` from the weights at ``first``."""
        world = layout.get("tp", 1) * layout.get("pp", 1) * layout.get("dp", 1)
        train = {"init_from": str(first), "dtype": "fp64", "steps": 100, "eval_batches": 1}
        sizes = {"global_batch_size": self.sequences, "micro_batch_size": 1}
        optim = {"lr": LR, "min_lr": LR, "warmup_steps": 0, "weight_decay": WEIGHT_DECAY}
        return {
            "model": {**model, "seq_len": SEQ_LEN},
            "parallel": layout,
            "launch": {"ranks_per_node": world},
            "train": train | sizes,
            "optim": optim | {"clip_grad": self.clip},
        }


UNEVEN = (1, SEQ_LEN, 0, 3, SEQ_LEN - 1, 0, 2)
CASES = {
    "uneven masks": Case(
        ({}, {"pp": 2, "schedule": "zb-h1"}, {"dp": 2}, {"tp": 2, "pp": 2}),
        counted=UNEVEN,
    ),
    "tied": Case(
        (
            {"pp": 2, "dp": 2},
            {"pp": 2, "dp": 2, "schedule": "interleaved", "vp": 2},
            {"pp": 2, "dp": 2, "schedule": "zb-v"},
            {"dp": 2},
        ),
        keys={"tie_word_embeddings": True},
        counted=UNEVEN,
    ),
    "clipped": Case(({"pp": 4}, {"pp": 2, "tp": 2}, {"pp": 2, "dp": 2}), clip=0.04),
    "window": Case(
        ({}, {"tp": 2}, {"pp": 2}),
        kind="mistral",
        keys={"sliding_window": 4},
    ),
    "few micro-batches": Case(
        (
            *({"pp": 4, "schedule": name} for name in ("gpipe", "1f1b", "zb-h1")),
            {"pp": 2, "schedule": "zb-v"},
        ),
        sequences=2,
    ),
    "norms of heads": Case(
        ({"tp": 2}, {"tp": 2, "pp": 2}, {"tp": 2, "dp": 2}),
        kind="qwen3",
        keys={"head_dim": 8, "layer_types": ["full_attention"] * 4},
    ),
}


def save(case: Case, folder: Path) -> None:
    """Write the model with weights so large that every part of it counts."""
    draw = np.random.Generator(np.random.Philox(5))
    weights = {}
    for name, shape in _shapes(case.config).items():
        noise = draw.standard_normal(shape) * 0.2
        weights[name] = (noise + (len(shape) == 1)).astype(np.float32)  # norms are about one
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(case.config))
    save_file(weights, folder / "model.safetensors")


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim", hidden // config["num_attention_heads"])
    queries, keys = (config[name] * size for name in ("num_attention_heads", "num_key_value_heads"))
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    if config["model_type"] == "qwen3":
        layer |= {"self_attn.q_norm": (size,), "self_attn.k_norm": (size,)}
    table = (config["vocab_size"], hidden)
    found = {"model.embed_tokens.weight": table, "model.norm.weight": (hidden,)}
    for index in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return found if config.get("tie_word_embeddings") else found | {"lm_head.weight": table}
