"""A layer as a user might write one: attention and a gated MLP in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from headway.trainer.config.architecture import Architecture
from headway.trainer.model.positions import Positions


class GatedBlock(torch.nn.Module):
    """y = h + down(silu(gate(h)) * up(h)) with h = x + scale * attention(norm(x))."""

    def __init__(self, model: Architecture, layer: int) -> None:
        super().__init__()
        width = model.hidden
        self.heads = model.heads
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.gate = torch.nn.Linear(width, model.ffn)
        self.up = torch.nn.Linear(width, model.ffn)
        self.down = torch.nn.Linear(model.ffn, width)
        self.scale = torch.nn.Parameter(torch.ones(width) / (layer + 1))

    def forward(self, x: torch.Tensor, at: Positions) -> torch.Tensor:
        """x and y [seq, micro_batch, hidden]."""
        del at  # this one has no positions
        seq, batch, width = x.shape
        qkv = self.qkv(self.norm(x)).view(seq, batch, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 1, 3, 0, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h: torch.Tensor = x + self.scale * out.permute(2, 0, 1, 3).reshape(seq, batch, width)
        y: torch.Tensor = h + self.down(F.silu(self.gate(h)) * self.up(h))
        return y
