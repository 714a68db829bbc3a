"""The model once more, in plain autograd and whole tensors: what the hand-written
backward is held against.

Written apart from ``headway.trainer.model``: no code of it is used, only the names and
shapes of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from headway.trainer.config import ModelConfig
from headway.trainer.state.init import initial_values
from headway.trainer.state.params import ParamSpec

Params = Mapping[str, torch.Tensor]


def parameter_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and global shape of every parameter."""
    hidden, ffn, vocab = model.hidden, model.ffn_width, model.vocab_size
    shapes: dict[str, tuple[int, ...]] = {
        "embedding.weight": (vocab, hidden),
        "head.weight": (vocab, hidden),
        "final_norm.weight": (hidden,),
        "final_norm.bias": (hidden,),
    }
    for index in range(model.layers):
        layer = f"layers.{index}"
        shapes |= {
            f"{layer}.attention.qkv.weight": (3 * hidden, hidden),
            f"{layer}.attention.out.weight": (hidden, hidden),
            f"{layer}.mlp.up.weight": (ffn, hidden),
            f"{layer}.mlp.down.weight": (hidden, ffn),
        }
        for norm in ("norm",) if model.block == "parallel" else ("norm1", "norm2"):
            shapes |= {f"{layer}.{norm}.weight": (hidden,), f"{layer}.{norm}.bias": (hidden,)}
    return shapes


def initial_params(
    model: ModelConfig, seed: int, dtype: torch.dtype = torch.float64
) -> dict[str, torch.Tensor]:
    """The run's first weights, whole, each a leaf that wants a gradient."""
    params = {}
    for name, shape in parameter_shapes(model).items():
        narrow = name.endswith(("attention.out.weight", "mlp.down.weight"))
        std = model.init_std / (2 * model.layers) ** 0.5 if narrow else model.init_std
        is_norm = len(shape) == 1
        spec = ParamSpec(
            name,
            shape,
            None,
            0,
            1,
            not is_norm,
            init_std=0.0 if is_norm else std,
            init_value=1.0 if name.endswith("weight") else 0.0,
        )
        values = torch.from_numpy(initial_values(spec, seed, 0, spec.numel)).to(dtype)
        params[name] = values.view(shape).requires_grad_()
    return params


def loss_sum(
    params: Params,
    model: ModelConfig,
    tokens: torch.Tensor,
    labels: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Sum of the masked tokens' cross-entropies; tokens, labels, mask [micro_batch, seq]."""
    logits = whole_logits(params, model, tokens)
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return (losses * mask.flatten()).sum()


def whole_logits(params: Params, model: ModelConfig, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [micro_batch, seq, vocab]."""
    x = params["embedding.weight"][tokens]
    for index in range(model.layers):
        layer = f"layers.{index}"
        if model.block == "parallel":
            normed = _norm(params, f"{layer}.norm", x)
            x = x + _attention(params, model, layer, normed) + _mlp(params, layer, normed)
        else:
            x = x + _attention(params, model, layer, _norm(params, f"{layer}.norm1", x))
            x = x + _mlp(params, layer, _norm(params, f"{layer}.norm2", x))
    return F.linear(_norm(params, "final_norm", x), params["head.weight"])


def _norm(params: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], params[f"{name}.weight"], params[f"{name}.bias"], 1e-5)


def _mlp(params: Params, layer: str, x: torch.Tensor) -> torch.Tensor:
    inner = F.gelu(x @ params[f"{layer}.mlp.up.weight"].T, approximate="none")
    return inner @ params[f"{layer}.mlp.down.weight"].T


def _attention(params: Params, model: ModelConfig, layer: str, x: torch.Tensor) -> torch.Tensor:
    batch, seq, _ = x.shape
    qkv = (x @ params[f"{layer}.attention.qkv.weight"].T).view(
        batch, seq, model.heads, 3, model.head_dim
    )
    q, k, v = (qkv[:, :, :, index].transpose(1, 2) for index in range(3))
    q, k = _rotate(q, model), _rotate(k, model)
    scores = (q @ k.transpose(-1, -2)) / model.head_dim**0.5
    later = torch.ones(seq, seq, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    joined = (weights @ v).transpose(1, 2).reshape(batch, seq, -1)
    return F.linear(joined, params[f"{layer}.attention.out.weight"])


def _rotate(x: torch.Tensor, model: ModelConfig) -> torch.Tensor:
    """Turn each pair of neighbours by its angle; x [batch, heads, seq, head_dim]."""
    half = model.head_dim // 2
    position = torch.arange(x.shape[2], dtype=torch.float64)[:, None]
    angle = position * model.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
    return torch.stack(turned, -1).flatten(-2).to(x.dtype)
