"""What a model is once its preset has filled in every key that was left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headway.common.config_checks import at_least, within
from headway.common.errors import ConfigError

VOCABULARY_MULTIPLE = 64
"""Rows of the embedding are padded to a multiple of it, the same for every grid."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "headway": {},
    "gpt2": {
        "mlp": "gelu-tanh",
        "positions": "learned",
        "bias": "all",
        "tied": True,
    },
    "llama": {"norm": "rmsnorm", "mlp": "swiglu"},
    "mistral": {"norm": "rmsnorm", "mlp": "swiglu"},
    "qwen3": {"norm": "rmsnorm", "norm_eps": 1e-6, "mlp": "swiglu", "qk_norm": True},
    "neox": {"block": "parallel", "norms": 2, "bias": "all", "rope_fraction": 0.25},
}
"""What each family fixes. Radford et al. 2019 (gpt2), arXiv 2302.13971 (llama), 2310.06825
(mistral), 2505.09388 (qwen3), 2204.06745 (neox)."""

DEFAULTS: Mapping[str, Any] = {
    "norm": "layernorm",
    "norm_eps": 1e-5,
    "mlp": "gelu",
    "positions": "rotary",
    "rope_fraction": 1.0,
    "bias": "none",
    "qk_norm": False,
    "tied": False,
    "block": "serial",
}
_NAMED_BLOCKS = ("serial", "parallel")


@dataclass(frozen=True)
class RopeScaling:
    """Longer contexts for rotary positions, scaled as in Llama 3.1 (arXiv 2407.21783).

    Angles of wavelengths above ``original_len / low`` are divided by ``factor``, those below
    ``original_len / high`` are kept, and between the two it is interpolated.
    """

    factor: float = 1.0
    """1 leaves the angles as they are."""
    low: float = 1.0
    """Wavelengths that fit less often than this into ``original_len`` are divided by ``factor``."""
    high: float = 4.0
    """Wavelengths that fit more often than this are kept."""
    original_len: int = 8192
    """Tokens of a sequence before the scaling."""

    def __post_init__(self) -> None:
        at_least(self, "model.rope_scaling", 1, "original_len")
        values = (self.factor, self.low, self.high)
        is_ordered = self.factor >= 1.0 and 0.0 < self.low < self.high
        if not is_ordered or not all(map(math.isfinite, values)):
            raise ConfigError(
                f"model.rope_scaling has factor={self.factor:g}, low={self.low:g}, "
                f"high={self.high:g}",
                remedy="use a factor of 1 or more, and 0 < low < high",
            )


@dataclass(frozen=True)
class Architecture:
    """A decoder with no key left open; the fields are those of ``ModelConfig``."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    seq_len: int
    norm: Literal["layernorm", "rmsnorm"]
    norm_eps: float
    norms: int
    mlp: Literal["gelu", "gelu-tanh", "swiglu"]
    positions: Literal["rotary", "learned"]
    rope_theta: float
    rope_fraction: float
    rope_scaling: RopeScaling
    bias: Literal["none", "qkv", "all"]
    qk_norm: bool
    tied: bool
    window: int | None
    window_layers: tuple[int, ...]
    document_end: int | None
    block: str
    init_std: float

    def __post_init__(self) -> None:
        at_least(self, "model", 1, "layers", "hidden", "heads", "kv_heads")
        at_least(self, "model", 1, "vocab_size", "seq_len", "ffn")
        self._check_heads()
        self._check_attention()
        self._check_block()

    @property
    def queries_per_kv(self) -> int:
        """Heads of queries that share one head of keys and values."""
        return self.heads // self.kv_heads

    def queries_on(self, tp: int) -> int:
        """Those of them that one of ``tp`` ranks has."""
        return self.heads // max(self.kv_heads, tp)

    @property
    def qkv_width(self) -> int:
        """Rows of the map to queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def heads_width(self) -> int:
        """Width of all heads' outputs together."""
        return self.heads * self.head_dim

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def is_gated(self) -> bool:
        """Whether the MLP has a gate beside its first matrix."""
        return self.mlp == "swiglu"

    @property
    def own_block(self) -> str | None:
        """``package.module:Class`` of the user's own block."""
        return None if self.block in _NAMED_BLOCKS else self.block

    def window_of(self, layer: int) -> int | None:
        """The window of one layer, None for all tokens before."""
        return self.window if not self.window_layers or layer in self.window_layers else None

    def fault_of_tp(self, tp: int) -> str:
        """Why ``tp`` ranks cannot share this model, with the value; "" if they can."""
        if self.own_block is not None and tp > 1:
            return (
                f"parallel.tp={tp} with model.block={self.block!r}, which runs under pp and dp only"
            )
        rows, kv = self.padded_vocab_size, self.kv_heads
        if self.vocab_size <= rows - rows // tp:
            vocabulary = f"model.vocab_size={self.vocab_size}"
            return f"{vocabulary} leaves a rank of parallel.tp={tp} without a token"
        if kv % tp and tp % kv:
            return f"model.kv_heads={kv} is not divisible by parallel.tp={tp}, nor a divisor of it"
        split = {
            "model.heads": self.heads,
            "model.ffn": self.ffn,
            "the padded vocabulary": rows,
            "model.seq_len": self.seq_len,
        }
        for name, value in split.items():
            if value % tp:
                return f"{name}={value} is not divisible by parallel.tp={tp}"
        return ""

    def _check_heads(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"model.heads={self.heads} is not a multiple of model.kv_heads={self.kv_heads}",
                remedy="choose model.kv_heads as a divisor of model.heads",
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise ConfigError(
                f"model.head_dim={self.head_dim} is not an even number of 2 or more",
                remedy="choose model.hidden as an even multiple of model.heads, or set "
                "model.head_dim",
            )

    def _check_attention(self) -> None:
        within(self, "model", 0.0, 1.0, "norm_eps")
        within(self, "model", 0.0, math.inf, "init_std", "rope_theta")
        if self.rope_theta <= 1.0:
            raise ConfigError(
                f"model.rope_theta={self.rope_theta:g} is not above 1", remedy="use 10000 or more"
            )
        if self.positions == "learned" and self.rope_scaling.factor != 1.0:
            raise ConfigError(
                "model.rope_scaling with model.positions='learned'",
                remedy="remove model.rope_scaling, or set model.positions='rotary'",
            )
        turned = self.rope_fraction * self.head_dim
        if not 0.0 < self.rope_fraction <= 1.0 or turned != int(turned) or int(turned) % 2:
            raise ConfigError(
                f"model.rope_fraction={self.rope_fraction:g} of model.head_dim={self.head_dim} is "
                "not an even number",
                remedy="choose a fraction that gives an even number of rotated elements",
            )
        if self.window is not None and not 1 <= self.window <= self.seq_len:
            raise ConfigError(
                f"model.window={self.window} of model.seq_len={self.seq_len}",
                remedy=f"use a window from 1 to {self.seq_len}, or leave it out",
            )
        wrong = [layer for layer in self.window_layers if not 0 <= layer < self.layers]
        if wrong or (self.window_layers and self.window is None):
            raise ConfigError(
                f"model.window_layers={list(self.window_layers)} with model.window={self.window} "
                f"and model.layers={self.layers}",
                remedy=f"set model.window, and use layers from 0 to {self.layers - 1}",
            )

        if self.document_end is not None and not 0 <= self.document_end < self.vocab_size:
            raise ConfigError(
                f"model.document_end={self.document_end} of model.vocab_size={self.vocab_size}",
                remedy="use the id of the corpus's end-of-text token",
            )

    def _check_block(self) -> None:
        block = self.block
        if self.own_block is None:
            if self.norms == 1 and block == "serial":
                raise ConfigError(
                    "model.norms=1 with model.block='serial'",
                    remedy="set model.block='parallel', or leave model.norms out",
                )
            if self.norms == 1 and self.bias == "qkv":
                raise ConfigError(
                    "model.bias='qkv' with a parallel block of one norm",
                    remedy="set model.bias='all' or 'none', or model.norms=2",
                )
            return
        package, _, name = block.partition(":")
        if not name.isidentifier() or not all(part.isidentifier() for part in package.split(".")):
            raise ConfigError(
                f"model.block={block!r} is unknown",
                remedy="use serial, parallel, or package.module:Class of your own",
            )
