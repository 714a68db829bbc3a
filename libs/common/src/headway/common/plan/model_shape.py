"""A model's size in numbers: parameters, floating-point operations per token, utilisation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A GPT without biases in its linears and with an untied head.

    ``norms_per_layer`` counts LayerNorms of weight and bias: two in the serial block, one in the
    parallel block. One more precedes the head.
    """

    layers: int
    hidden: int
    ffn: int
    vocab_size: int
    seq_len: int
    norms_per_layer: int = 2

    @property
    def matmul_parameters(self) -> int:
        """Parameters in a token's matrix products: linears and head, not the embedding table."""
        return (
            self.layers * self.hidden * (4 * self.hidden + 2 * self.ffn)
            + self.hidden * self.vocab_size
        )

    @property
    def parameters(self) -> int:
        """All parameters."""
        norms = 2 * self.hidden * (self.layers * self.norms_per_layer + 1)
        return self.matmul_parameters + self.hidden * self.vocab_size + norms

    @property
    def flops_per_token(self) -> int:
        """Model FLOPs of one token's forward and backward.

        ``6 x matmul parameters + 6 x layers x hidden x seq_len``: two operations per multiply-add,
        backward twice the forward, causal attention at half of ``12 x layers x hidden x seq_len``
        (Megatron-LM, arXiv 2104.04473, section 5.1, without recomputation).
        """
        return 6 * self.matmul_parameters + 6 * self.layers * self.hidden * self.seq_len


def mfu(*, tokens_per_s: float, flops_per_token: int, peak_flops: float) -> float:
    """Model FLOPs utilisation, 0..1: model FLOPs per second over the peak. (PaLM, arXiv
    2204.02311, appendix B.)

    Raises:
        ValueError: ``peak_flops`` is not above 0.
    """
    if peak_flops <= 0:
        raise ValueError(f"peak_flops={peak_flops} is not above 0")
    return tokens_per_s * flops_per_token / peak_flops
