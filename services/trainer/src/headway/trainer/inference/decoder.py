"""The decoder's forward in plain torch, token by token with a cache of keys and values.

B = sequences, S = tokens of this call, T = tokens so far, G = heads of keys and values, Q = heads
of queries for each of them, D = head_dim. Parameters have the names and layouts of checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from headway.common.errors import InputError
from headway.trainer.config.architecture import Architecture
from headway.trainer.inference.cache import Cache
from headway.trainer.model.positions import Rope, rotary_frequencies

Parameters = Mapping[str, torch.Tensor]


class Decoder:
    """A model whose whole weights are in memory, in the type in which it computes."""

    def __init__(self, model: Architecture, parameters: Parameters) -> None:
        """Raises InputError: a model with a block of the user's own."""
        if model.own_block is not None:
            raise InputError(
                f"model.block={model.block!r} cannot run without a cluster",
                remedy="sample from the live run, or generate with your own code",
            )
        self.model, self._parameters = model, parameters
        if model.positions == "rotary":
            self._frequencies = rotary_frequencies(model).to(parameters["embedding.weight"].device)

    def new_cache(self) -> Cache:
        """An empty cache for one batch of sequences."""
        return Cache([self.model.window_of(layer) for layer in range(self.model.layers)])

    @torch.no_grad()
    def logits(self, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Return the logits [B, S, vocab_size] after each of ``tokens`` [B, S].

        The tokens continue what is in ``cache``.

        Raises:
            InputError: learned positions end at ``seq_len``.
        """
        model, first = self.model, cache.length
        index = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        x = F.embedding(tokens, self._parameters["embedding.weight"])
        rope = None
        if model.positions == "learned":
            if int(index[-1]) >= model.seq_len:
                raise InputError(
                    f"{int(index[-1]) + 1} tokens are more than model.seq_len={model.seq_len}, and "
                    "the model has learned positions",
                    remedy="give a shorter prompt or a smaller --count",
                )
            x = x + self._parameters["embedding.positions"][index]
        else:
            angle = torch.outer(index.double(), self._frequencies)
            rope = angle.cos().float(), angle.sin().float()
        for layer in range(model.layers):
            x = self._block(f"layers.{layer}", layer, x, rope, cache)
        cache.advance(tokens.shape[1])
        table = "embedding.weight" if model.tied else "head.weight"
        normed = self._norm("final_norm", x)
        return F.linear(normed, self._parameters[table][: model.vocab_size]).float()

    def _block(
        self, name: str, layer: int, x: torch.Tensor, rope: Rope | None, cache: Cache
    ) -> torch.Tensor:
        model = self.model
        norms = ("norm", "norm") if model.norms == 1 else ("norm1", "norm2")
        first, second = (f"{name}.{norm}" for norm in norms)
        attended = self._attention(f"{name}.attention", layer, self._norm(first, x), rope, cache)
        if model.block == "parallel":
            return x + attended + self._mlp(f"{name}.mlp", self._norm(second, x))
        x = x + attended
        return x + self._mlp(f"{name}.mlp", self._norm(second, x))

    def _attention(
        self, name: str, layer: int, x: torch.Tensor, rope: Rope | None, cache: Cache
    ) -> torch.Tensor:
        model, each = self.model, self.model.queries_per_kv
        joined = self._linear(f"{name}.qkv", x)
        heads = joined.view(*x.shape[:2], -1, each + 2, model.head_dim)
        q, k, v = heads[..., :each, :].flatten(2, 3), heads[..., each, :], heads[..., each + 1, :]
        if model.qk_norm:
            q = self._rms(f"{name}.q_norm", q)
            k = self._rms(f"{name}.k_norm", k)
        if rope is not None:
            q, k = _rotated(q, rope), _rotated(k, rope)
        keys, values, mask = cache.add(layer, k.transpose(1, 2), v.transpose(1, 2))
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=each > 1
        )
        return self._linear(f"{name}.out", out.transpose(1, 2).flatten(2))

    def _mlp(self, name: str, x: torch.Tensor) -> torch.Tensor:
        up = self._linear(f"{name}.up", x)
        if self.model.is_gated:
            inner = F.silu(self._linear(f"{name}.gate", x)) * up
        else:
            inner = _GELUS[self.model.mlp](up)
        return self._linear(f"{name}.down", inner)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight = self._parameters[f"{name}.weight"]
        return F.linear(x, weight, self._parameters.get(f"{name}.bias"))

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        if self.model.norm == "rmsnorm":
            return self._rms(name, x)
        weight, bias = self._parameters[f"{name}.weight"], self._parameters[f"{name}.bias"]
        wide = F.layer_norm(
            x.float(), x.shape[-1:], weight.float(), bias.float(), self.model.norm_eps
        )
        return wide.to(x.dtype)

    def _rms(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Over the last dimension, in fp32."""
        weight = self._parameters[f"{name}.weight"].float()
        return F.rms_norm(x.float(), x.shape[-1:], weight, self.model.norm_eps).to(x.dtype)


_GELUS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def _rotated(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """x [B, S, H, D] with neighbours 2i and 2i + 1 rotated by the angles [S, D / 2], in fp32."""
    cos, sin = (part[:, None] for part in rope)
    first, second = x[..., ::2].float(), x[..., 1::2].float()
    turned = (first * cos - second * sin, first * sin + second * cos)
    return torch.stack(turned, -1).flatten(-2).to(x.dtype)
