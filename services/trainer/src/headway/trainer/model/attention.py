"""Causal attention over this rank's heads, and its backward.

Shapes: S = seq, B = micro-batch, H = local heads, D = head_dim. ``qkv`` holds q, k, v of one head
next to each other, so that tensor parallelism splits its rows between heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from headway.trainer.model.layers import Rotary
from headway.trainer.model.matmul import kernel_dtype, widen
from headway.trainer.model.tape import Tape


class Attention:
    """softmax(rotate(q) rotate(k)^T / sqrt(D)) v with a causal mask, by the device's fused kernel.

    The kernel and its backward differ by device and type, so this one step keeps a small autograd
    graph between forward and backward; no collective runs inside it.
    """

    def __init__(self, head_dim: int, rotary: Rotary) -> None:
        self.head_dim, self.rotary = head_dim, rotary

    def forward(self, qkv: torch.Tensor, tape: Tape | None) -> torch.Tensor:
        """qkv [S, B, H * 3 * D] -> [S, B, H * D]."""
        turned = self.rotary.turn(qkv).to(kernel_dtype(qkv.dtype, qkv.device.type))
        # The kernels are faster with each head's rows together; one copy gives all three.
        packed = (
            turned.view(*qkv.shape[:2], -1, 3, self.head_dim).permute(3, 1, 2, 0, 4).contiguous()
        )
        q, k, v = packed.unbind()
        if tape is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            with torch.enable_grad():
                q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            tape.push((q, k, v, out))
        return out.detach().permute(2, 0, 1, 3).flatten(2).to(qkv.dtype)

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Gradient of ``qkv``, [S, B, H * 3 * D]."""
        q, k, v, out = tape.pop()
        grad_SBHD = widen(grad).view(*grad.shape[:2], -1, self.head_dim)
        grads = torch.autograd.grad(out, (q, k, v), grad_SBHD.permute(1, 2, 0, 3).contiguous())
        joined = torch.stack([t.permute(2, 0, 1, 3) for t in grads], 3).flatten(2)
        return self.rotary.turn(joined, back=True).to(grad.dtype)
