"""The peers' model: a GPT in the style of nanoGPT with rotary positions, in plain torch.

Same mathematics as Headway's: pre-norm LayerNorm, exact GELU, untied head, no biases in linears.
Rows of the joined q, k, v matrix are ordered by head, so that tensor parallelism can cut them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.train.shapes import Shape

PAIRS = "neighbours"
"""How Headway pairs the elements that the rotary positions turn: ``neighbours`` 2i and 2i + 1, or
``halves`` i and i + D/2, which is what this model uses."""


class Block(nn.Module):
    """One serial layer."""

    def __init__(self, hidden: int, head_dim: int, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.head_dim, self.mask = head_dim, mask
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x [batch, seq, hidden] (a piece of seq under sequence parallelism)."""
        x = x + self.out(self._attention(self.qkv(self.norm1(x)), cos, sin))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def _attention(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = qkv.shape
        q, k, v = qkv.view(batch, seq, -1, 3, self.head_dim).transpose(1, 2).unbind(3)
        y = F.scaled_dot_product_attention(
            _rotate(q, cos, sin),
            _rotate(k, cos, sin),
            v,
            attn_mask=self.mask,
            is_causal=self.mask is None,
        )
        return y.transpose(1, 2).reshape(batch, seq, -1)


class GPT(nn.Module):
    """Blocks ``layers`` of the model; the first has the embedding, the last the head."""

    def __init__(
        self, shape: Shape, layers: range | None = None, *, first: bool = True, last: bool = True
    ) -> None:
        super().__init__()
        layers = range(shape.layers) if layers is None else layers
        head_dim = shape.hidden // shape.heads
        self.embedding = nn.Embedding(shape.vocab, shape.hidden) if first else None
        mask = _band(shape.seq, shape.window) if shape.window else None
        self.blocks = nn.ModuleDict({str(n): Block(shape.hidden, head_dim, mask) for n in layers})
        self.norm = nn.LayerNorm(shape.hidden) if last else None
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False) if last else None
        turns = 10_000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angle = torch.outer(torch.arange(shape.seq, dtype=torch.float64), turns).repeat(1, 2)
        self.cos, self.sin = angle.cos().float(), angle.sin().float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens or activations to activations or logits."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x, self.cos, self.sin)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x

    def to_device(self, device: torch.device, dtype: torch.dtype | None = None) -> GPT:
        """Move it, the rotary tables included, and optionally change the parameters' type."""
        self.to(device, dtype)
        self.cos, self.sin = self.cos.to(device), self.sin.to(device)
        return self


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in fp32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def _band(seq: int, window: int) -> torch.Tensor:
    """Which keys each query sees, [seq, seq]."""
    at = torch.arange(seq)
    distance = at[:, None] - at
    return (distance >= 0) & (distance < window)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    turned = x.float() * cos + torch.cat((-high, low), -1).float() * sin
    return turned.to(x.dtype)


def load_weights(model: nn.Module, weights: dict[str, torch.Tensor], head_dim: int) -> None:
    """Copy Headway's initial weights into ``model``, those that it has."""
    names = {
        "embedding.weight": "embedding.weight",
        "head.weight": "head.weight",
        "norm.weight": "final_norm.weight",
        "norm.bias": "final_norm.bias",
    }
    inner = {"qkv": "attention.qkv", "out": "attention.out", "up": "mlp.up", "down": "mlp.down"}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            name = name.replace("_orig_mod.", "")
            theirs = names.get(name)
            if theirs is None:
                _, layer, part, kind = name.split(".")
                theirs = f"layers.{layer}.{inner.get(part, part)}.{kind}"
            value = weights[theirs]
            if theirs.endswith("qkv.weight") and PAIRS == "neighbours":
                value = _to_halves(value, head_dim)
            parameter.copy_(value)


def _to_halves(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of q and k from neighbouring pairs to halves."""
    rows = weight.view(-1, 3, head_dim // 2, 2, weight.shape[1]).clone()
    halves = rows.transpose(2, 3).reshape(-1, 3, head_dim, weight.shape[1])
    halves[:, 2] = rows[:, 2].reshape(-1, head_dim, weight.shape[1])
    return halves.reshape(weight.shape)


def optimizer(model: nn.Module, lr: float, **how: Any) -> torch.optim.AdamW:
    """Fused AdamW with Headway's constants; only matrices decay."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr, betas=(0.9, 0.95), eps=1e-8, **{"fused": True, **how})
