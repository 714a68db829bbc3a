"""The table ``[model]``: a decoder of the GPT and Llama families, or of the user's own blocks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from headway.common.errors import ConfigError
from headway.trainer.config.architecture import DEFAULTS, PRESETS, Architecture, RopeScaling


@dataclass(frozen=True)
class ModelConfig:
    """A pre-norm decoder.

    A preset fills in what its family fixes; every key that is set next to it wins
    (docs/howto/models.md).
    """

    preset: Literal["headway", "gpt2", "llama", "mistral", "qwen3", "neox"] = "headway"
    """The family whose norm, MLP, positions, biases and block are used where they are not set;
    ``headway``: LayerNorm, GELU, rotary positions, no biases, serial block, untied head."""
    layers: int = 4
    """Transformer blocks; a multiple of ``pp * vp`` unless ``parallel.stage_layers`` is set."""
    hidden: int = 384
    """Width of the residual stream."""
    heads: int = 6
    """Attention heads (of queries); ``tp`` divides them."""
    kv_heads: int | None = None
    """Heads of keys and values (GQA, arXiv 2305.13245), each for ``heads / kv_heads`` of queries;
    ``tp`` divides them, or is a multiple: then ranks share a head. None means ``heads``."""
    head_dim: int | None = None
    """Width of a head, even. None means ``hidden / heads``."""
    ffn: int | None = None
    """Width of the MLP; None means ``4 * hidden``, or with swiglu ``8/3 * hidden`` rounded up to a
    multiple of 64."""
    vocab_size: int = 8192
    """Tokens of the vocabulary; at least those of the corpus. The embedding has rows up to the next
    multiple of 64, which no token uses."""
    seq_len: int = 512
    """Tokens of one sequence."""
    norm: Literal["layernorm", "rmsnorm"] | None = None
    """Before attention, before the MLP and before the head. None takes the preset's."""
    norm_eps: float | None = None
    """Added to the variance. None takes the preset's."""
    norms: Literal[1, 2] | None = None
    """Norms of a parallel block: 1 is shared by attention and MLP, so that tensor parallelism
    gathers once; 2 as in GPT-NeoX. None takes the preset's."""
    mlp: Literal["gelu", "gelu-tanh", "swiglu"] | None = None
    """Activation of the MLP (``swiglu``: arXiv 2002.05202, gated). None takes the preset's."""
    positions: Literal["rotary", "learned"] | None = None
    """Rotary (arXiv 2104.09864), or a learned row for each place. None takes the preset's."""
    rope_theta: float = 10_000.0
    """Base of the rotary angles."""
    rope_fraction: float | None = None
    """Share of a head's width that is rotated, above 0 up to 1. None takes the preset's."""
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    """For longer contexts."""
    bias: Literal["none", "qkv", "all"] | None = None
    """Linear maps with a bias: none, those of q, k, v, or all but the head. None takes the
    preset's."""
    qk_norm: bool | None = None
    """RMSNorm of each head's queries and keys before they are rotated. None takes the preset's."""
    tied: bool | None = None
    """The head uses the embedding's table. None takes the preset's."""
    window: int | None = None
    """Tokens to which attention is limited, the own one included; None means all before it."""
    window_layers: tuple[int, ...] = ()
    """Layers to which ``window`` applies, counted from 0; empty means all."""
    document_end: int | None = None
    """Token that ends a document: attention and positions begin anew after it. None lets them run
    over all documents of a packed sequence. A corpus names its own as
    ``eod_id`` in ``meta.json``."""
    block: str | None = None
    """``serial``; ``parallel``: y = x + mlp(norm(x)) + attn(norm(x)) (MegaScale, arXiv 2402.15627,
    section 3.1); or a torch module of your own as ``package.module:Class``. None takes the
    preset's."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""

    def __post_init__(self) -> None:
        if self.heads < 1 or (self.head_dim is None and self.hidden % self.heads):
            raise ConfigError(
                f"model.hidden={self.hidden} does not split into {self.heads} heads",
                remedy="choose model.hidden as a multiple of model.heads, or set model.head_dim",
            )
        _ = self.architecture

    @property
    def every_stage_reads(self) -> bool:
        """Whether stages between the first and the last read tokens too, for their documents."""
        return self.document_end is not None

    @cached_property
    def architecture(self) -> Architecture:
        """This model with every key that is None filled in.

        Raises:
            ConfigError: keys that do not go together.
        """
        values: dict[str, Any] = {
            key.name: getattr(self, key.name) for key in fields(self) if key.name != "preset"
        }
        preset = {**DEFAULTS, **PRESETS[self.preset]}
        chosen = {name: preset[name] for name in preset if values[name] is None}
        values |= chosen
        gated = values["mlp"] == "swiglu"
        derived = {
            "kv_heads": self.heads,
            "head_dim": self.hidden // self.heads,
            "ffn": -(-8 * self.hidden // 192) * 64 if gated else 4 * self.hidden,
            "norms": 1 if values["block"] == "parallel" else 2,
        }
        return Architecture(
            **values | {name: value for name, value in derived.items() if values[name] is None}
        )
