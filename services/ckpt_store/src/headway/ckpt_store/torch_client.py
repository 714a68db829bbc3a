"""Torch tensors in a saved state, and agreement over torch.distributed.

``CheckpointClient`` loads this by itself when a state holds tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from headway.ckpt_store.tree import Leaf
from headway.common.errors import CorruptError, InputError


def agree(value: int) -> int:
    """The smallest ``value`` of all ranks: one all-reduce over the default process group.

    For ``CheckpointClient.restore(agree=agree)``; every rank calls it equally often.
    """
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    number = torch.tensor(value, dtype=torch.int64, device=device)
    torch.distributed.all_reduce(number, op=torch.distributed.ReduceOp.MIN)
    return int(number)


def to_leaf(value: Any) -> Leaf | None:
    """The bytes of a tensor or parameter; None for any other value.

    They are a view of contiguous CPU memory, a copy of anything else.

    Raises:
        InputError: a sparse, quantised or meta tensor, or a dtype that safetensors does not know.
    """
    if not isinstance(value, torch.Tensor):
        return None
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise InputError(
            f"a tensor of shape {tuple(value.shape)} is not dense in memory",
            remedy="call .to_dense() first",
        )
    dense = value.detach().to("cpu").contiguous()
    if dense.is_conj() or dense.is_neg():
        dense = dense.resolve_conj().resolve_neg()
    name = str(dense.dtype).removeprefix("torch.")
    # A uint8 view exists for every dtype, also for those that numpy lacks (bfloat16).
    flat = (
        dense.reshape(-1).view(torch.uint8) if dense.numel() else torch.empty(0, dtype=torch.uint8)
    )
    return Leaf(flat.numpy(), name, tuple(dense.shape), "torch")


def from_leaf(leaf: Leaf) -> torch.Tensor:
    """A tensor on the CPU that shares the leaf's memory.

    Raises:
        CorruptError: unknown dtype, or bytes that do not fit the shape.
    """
    dtype = getattr(torch, leaf.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise CorruptError(
            f"the checkpoint has a tensor of dtype {leaf.dtype!r}", remedy="use a newer torch"
        )
    if leaf.data.nbytes == 0:
        return torch.empty(leaf.shape, dtype=dtype)
    # torch requires an offset aligned to the item, which a slice of a shared buffer may lack.
    aligned = leaf.data if leaf.data.ctypes.data % dtype.itemsize == 0 else np.array(leaf.data)
    return torch.from_numpy(aligned).view(dtype).reshape(leaf.shape)
