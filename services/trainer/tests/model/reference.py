"""The model once more, in plain autograd and whole tensors.

The hand-written backward is held against it.

Written apart from ``headway.trainer.model``: no code of it is used, only the names and
shapes of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from headway.trainer.config import ModelConfig
from headway.trainer.config.architecture import Architecture
from headway.trainer.state.initial_weights import initial_values
from headway.trainer.state.params import ParamSpec

Params = Mapping[str, torch.Tensor]
Borders = Sequence[Sequence[int]]


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and global shape of every parameter."""
    model = config.architecture
    hidden, rows = model.hidden, -(-model.vocab_size // 64) * 64
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (rows, hidden)}
    if model.positions == "learned":
        shapes["embedding.positions"] = (model.seq_len, hidden)
    if not model.tied:
        shapes["head.weight"] = (rows, hidden)
    norms = ["final_norm"]
    for index in range(model.layers):
        layer = f"layers.{index}"
        shared = model.block == "parallel" and model.norms == 1
        norms += [f"{layer}.norm"] if shared else [f"{layer}.norm1", f"{layer}.norm2"]
        shapes |= _layer_shapes(model, layer)
    for norm in norms:
        shapes[f"{norm}.weight"] = (hidden,)
        if model.norm == "layernorm":
            shapes[f"{norm}.bias"] = (hidden,)
    return shapes


def _layer_shapes(model: Architecture, layer: str) -> dict[str, tuple[int, ...]]:
    heads = model.heads * model.head_dim
    maps = {
        "attention.qkv": (heads + 2 * model.kv_heads * model.head_dim, model.hidden),
        "attention.out": (model.hidden, heads),
        "mlp.up": (model.ffn, model.hidden),
        "mlp.down": (model.hidden, model.ffn),
    }
    if model.mlp == "swiglu":
        maps["mlp.gate"] = maps["mlp.up"]
    shapes: dict[str, tuple[int, ...]] = {f"{layer}.{k}.weight": v for k, v in maps.items()}
    if model.bias == "all":
        shapes |= {f"{layer}.{name}.bias": shape[:1] for name, shape in maps.items()}
    elif model.bias == "qkv":
        shapes[f"{layer}.attention.qkv.bias"] = maps["attention.qkv"][:1]
    if model.qk_norm:
        shapes[f"{layer}.attention.q_norm.weight"] = (model.head_dim,)
        shapes[f"{layer}.attention.k_norm.weight"] = (model.head_dim,)
    return shapes


def initial_params(
    config: ModelConfig, seed: int, dtype: torch.dtype = torch.float64
) -> dict[str, torch.Tensor]:
    """The run's first weights, whole, each a leaf that wants a gradient."""
    params = {}
    for name, shape in parameter_shapes(config).items():
        narrow = name.endswith(("attention.out.weight", "mlp.down.weight"))
        std = config.init_std / (2 * config.layers) ** 0.5 if narrow else config.init_std
        is_vector = len(shape) == 1
        spec = ParamSpec(
            name,
            shape,
            None,
            0,
            1,
            not is_vector,
            init_std=0.0 if is_vector else std,
            init_value=1.0 if name.endswith("weight") else 0.0,
        )
        values = torch.from_numpy(initial_values(spec, seed, 0, spec.numel)).to(dtype)
        params[name] = values.view(shape).requires_grad_()
    return params


def loss_sum(
    params: Params,
    config: ModelConfig,
    tokens: torch.Tensor,
    labels: torch.Tensor,
    mask: torch.Tensor,
    borders: Borders | None = None,
) -> torch.Tensor:
    """Sum of the masked tokens' cross-entropies; tokens, labels, mask [micro_batch, seq]."""
    logits = whole_logits(params, config, tokens, borders)
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return (losses * mask.flatten()).sum()


def whole_logits(
    params: Params, config: ModelConfig, tokens: torch.Tensor, borders: Borders | None = None
) -> torch.Tensor:
    """Logits [micro_batch, seq, vocab]; each sequence by itself."""
    rows = [
        _logits(params, config.architecture, row, borders[index] if borders else (0, len(row)))
        for index, row in enumerate(tokens)
    ]
    return torch.stack(rows)


def _logits(
    params: Params, model: Architecture, tokens: torch.Tensor, borders: Sequence[int]
) -> torch.Tensor:
    """[seq, vocab] of one sequence, whose documents begin at ``borders``."""
    position = torch.cat([torch.arange(stop - start) for start, stop in pairwise(borders)])
    ends = torch.tensor(borders[1:])
    document = torch.searchsorted(ends, torch.arange(len(tokens)), right=True)
    x = params["embedding.weight"][tokens]
    if model.positions == "learned":
        x = x + params["embedding.positions"][position]
    for index in range(model.layers):
        layer = f"layers.{index}"
        seen = (position[:, None] >= position) & (document[:, None] == document)
        window = model.window
        if window is not None and (not model.window_layers or index in model.window_layers):
            seen = seen & (position[:, None] - position < window)
        if model.block == "serial":
            normed = _norm(params, model, f"{layer}.norm1", x)
            x = x + _attention(params, model, layer, normed, position, seen)
            x = x + _mlp(params, model, layer, _norm(params, model, f"{layer}.norm2", x))
        else:
            names = ("norm", "norm") if model.norms == 1 else ("norm1", "norm2")
            first, second = (_norm(params, model, f"{layer}.{name}", x) for name in names)
            attended = _attention(params, model, layer, first, position, seen)
            x = x + attended + _mlp(params, model, layer, second)
    table = params["embedding.weight" if model.tied else "head.weight"][: model.vocab_size]
    return F.linear(_norm(params, model, "final_norm", x), table)


def _norm(params: Params, model: Architecture, name: str, x: torch.Tensor) -> torch.Tensor:
    weight = params[f"{name}.weight"]
    if model.norm == "rmsnorm":
        return F.rms_norm(x, x.shape[-1:], weight, model.norm_eps)
    return F.layer_norm(x, x.shape[-1:], weight, params[f"{name}.bias"], model.norm_eps)


def _map(params: Params, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, params[f"{name}.weight"], params.get(f"{name}.bias"))


def _mlp(params: Params, model: Architecture, layer: str, x: torch.Tensor) -> torch.Tensor:
    inner = _map(params, f"{layer}.mlp.up", x)
    if model.mlp == "swiglu":
        inner = F.silu(_map(params, f"{layer}.mlp.gate", x)) * inner
    else:
        inner = F.gelu(inner, approximate="tanh" if model.mlp == "gelu-tanh" else "none")
    return _map(params, f"{layer}.mlp.down", inner)


def _attention(
    params: Params,
    model: Architecture,
    layer: str,
    x: torch.Tensor,
    position: torch.Tensor,
    seen: torch.Tensor,
) -> torch.Tensor:
    name, group = f"{layer}.attention", model.heads // model.kv_heads
    qkv = _map(params, f"{name}.qkv", x).view(len(x), model.kv_heads, group + 2, model.head_dim)
    out = []
    for head in range(model.heads):
        q, k, v = (qkv[:, head // group, index] for index in (head % group, group, group + 1))
        if model.qk_norm:
            q = F.rms_norm(q, q.shape[-1:], params[f"{name}.q_norm.weight"], model.norm_eps)
            k = F.rms_norm(k, k.shape[-1:], params[f"{name}.k_norm.weight"], model.norm_eps)
        if model.positions == "rotary":
            q, k = _rotate(q, model, position), _rotate(k, model, position)
        scores = (q @ k.T) / model.head_dim**0.5
        out.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v)
    return _map(params, f"{name}.out", torch.cat(out, -1))


def _rotate(x: torch.Tensor, model: Architecture, position: torch.Tensor) -> torch.Tensor:
    """Turn the pairs of neighbours in the rotated part by their angles; x [seq, head_dim]."""
    size = int(model.rope_fraction * model.head_dim)
    frequency = torch.tensor(
        [_frequency(model, 2 * pair / size) for pair in range(size // 2)], dtype=torch.float64
    )
    angle = position[:, None] * frequency
    even, odd = x[:, 0:size:2], x[:, 1:size:2]
    turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
    return torch.cat((torch.stack(turned, -1).flatten(-2).to(x.dtype), x[:, size:]), -1)


def _frequency(model: Architecture, power: float) -> float:
    frequency: float = model.rope_theta**-power
    scaling = model.rope_scaling
    if scaling.factor == 1.0:
        return frequency
    wavelength = 2 * math.pi / frequency
    if wavelength < scaling.original_len / scaling.high:
        return frequency
    if wavelength > scaling.original_len / scaling.low:
        return frequency / scaling.factor
    share = (scaling.original_len / wavelength - scaling.low) / (scaling.high - scaling.low)
    return (1 - share) * frequency / scaling.factor + share * frequency
