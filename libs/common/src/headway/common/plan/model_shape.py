"""A model's size in numbers: parameters, floating-point operations per token, utilisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder, in what its parameters and operations depend on.

    ``heads``, ``kv_heads``, ``head_dim`` and ``padded_vocab_size`` may be 0: one head as wide as
    the model, as many heads of keys, and a vocabulary without padding. ``norms`` counts those of a
    layer; one more precedes the head. ``windows`` are the layers' windows, None for all tokens.
    """

    layers: int
    hidden: int
    ffn: int
    vocab_size: int
    seq_len: int
    heads: int = 1
    kv_heads: int = 0
    head_dim: int = 0
    block: Literal["serial", "parallel"] = "serial"
    norms: int = 2
    is_gated: bool = False
    has_rms_norm: bool = False
    bias: Literal["none", "qkv", "all"] = "none"
    qk_norm: bool = False
    learned_positions: bool = False
    tied: bool = False
    padded_vocab_size: int = 0
    windows: tuple[int | None, ...] = ()

    @property
    def heads_width(self) -> int:
        """Width of all heads of queries together."""
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def qkv_width(self) -> int:
        """Width of queries, keys and values together."""
        return self.qkv_width_on(1)

    def qkv_width_on(self, tp: int) -> int:
        """Width of those of one of ``tp`` ranks, which has at least one head of keys and values."""
        kv_heads = max((self.kv_heads or self.heads) // tp, 1)
        return self.heads_width // tp + 2 * kv_heads * (self.heads_width // self.heads)

    @property
    def wide_width(self) -> int:
        """Width of what goes into the activation: gate and up."""
        return self.ffn * (2 if self.is_gated else 1)

    @property
    def table_rows(self) -> int:
        """Rows of the embedding, padding included."""
        return self.padded_vocab_size or self.vocab_size

    @property
    def norm_vectors(self) -> int:
        """Parameters of a norm, in vectors of ``hidden``."""
        return 1 if self.has_rms_norm else 2

    def layer_matrices(self, tp: int = 1) -> tuple[int, int, int]:
        """Elements of a layer's maps inward (one product or several), out and down.

        With ``tp``, of the pieces on one of so many tensor-parallel ranks.
        """
        inward = self.qkv_width_on(tp) + self.wide_width // tp
        outward = self.heads_width // tp, self.ffn // tp
        return self.hidden * inward, self.hidden * outward[0], self.hidden * outward[1]

    def bias_widths(self, tp: int = 1) -> tuple[int, int]:
        """Elements of a layer's biases that tensor parallelism splits, and of those it does not."""
        if self.bias == "none":
            return 0, 0
        if self.bias == "qkv":
            return self.qkv_width_on(tp), 0
        return self.qkv_width_on(tp) + self.wide_width // tp, 2 * self.hidden

    @property
    def matmul_parameters(self) -> int:
        """Parameters in a token's matrix products: linears and head, not the embedding table."""
        return self.layers * sum(self.layer_matrices()) + self.hidden * self.vocab_size

    @property
    def parameters(self) -> int:
        """All parameters, padding of the vocabulary not included."""
        norms = self.norm_vectors * self.hidden * (self.layers * self.norms + 1)
        head_norms = 2 * self.heads_width // self.heads * self.layers if self.qk_norm else 0
        positions = self.hidden * self.seq_len if self.learned_positions else 0
        table = 0 if self.tied else self.hidden * self.vocab_size
        biases = self.layers * sum(self.bias_widths())
        return self.matmul_parameters + table + norms + head_norms + positions + biases

    @property
    def flops_per_token(self) -> int:
        """Model FLOPs of one token's forward and backward, windows counted.

        ``6 x matmul parameters + 12 x layers x width of heads x keys``: two operations per
        multiply-add, backward twice the forward, without recomputation (Megatron-LM, arXiv
        2104.04473, section 5.1). A token has ``seq_len / 2`` keys on average, or within a window
        of w ``w - w^2 / (2 x seq_len)``.
        """
        windows = self.windows or (None,) * self.layers
        keys = sum(self._keys(window) for window in windows)
        return 6 * self.matmul_parameters + round(12 * self.heads_width * keys)

    @property
    def full_flops_per_token(self) -> int:
        """Model FLOPs of one token's forward and backward if no layer had a window."""
        keys = self.layers * self._keys(None)
        return 6 * self.matmul_parameters + round(12 * self.heads_width * keys)

    def _keys(self, window: int | None) -> float:
        if window is None:
            return self.seq_len / 2
        return window - window**2 / (2 * self.seq_len)


def mfu(*, tokens_per_s: float, flops_per_token: int, peak_flops: float) -> float:
    """Model FLOPs utilisation, 0..1: model FLOPs per second over the peak.

    See PaLM, arXiv 2204.02311, appendix B.

    Raises:
        ValueError: ``peak_flops`` is not above 0.
    """
    if peak_flops <= 0:
        raise ValueError(f"peak_flops={peak_flops} is not above 0")
    return tokens_per_s * flops_per_token / peak_flops
