"""Torch tensors in a saved state, and agreement over torch.distributed.

``CheckpointClient`` loads this by itself when a state holds tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from headway.ckpt_store.dtypes import DTYPES
from headway.ckpt_store.tree import Leaf
from headway.common.errors import CorruptError, InputError

_PLAIN = (torch.Tensor, torch.nn.Parameter)


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
        InputError: as ``outline``.
    """
    if outline(value) is None:
        return None
    dense = value.detach().to("cpu").contiguous()
    if dense.is_conj() or dense.is_neg():
        dense = dense.resolve_conj().resolve_neg()
    name = str(dense.dtype).removeprefix("torch.")
    # A uint8 view exists for every dtype, also for those that numpy lacks (bfloat16).
    flat = (
        dense.reshape(-1).view(torch.uint8) if dense.numel() else torch.empty(0, dtype=torch.uint8)
    )
    return Leaf(flat.numpy(), name, tuple(dense.shape), "torch")


def outline(value: Any) -> Leaf | None:
    """Describe a tensor as ``to_leaf`` does, without reading or copying its bytes.

    Raises:
        InputError: a tensor that cannot be kept: a DTensor or another subclass, one that is sparse,
            quantised or without memory, or a dtype that safetensors does not know.
    """
    if not isinstance(value, torch.Tensor):
        return None
    shape, name = tuple(value.shape), str(value.dtype).removeprefix("torch.")
    if type(value) not in _PLAIN:
        kind = type(value).__name__
        remedy = "save a plain tensor made from it"
        if hasattr(value, "full_tensor"):
            remedy = "save its .full_tensor(), on one rank, or its .to_local(), on every rank"
        raise InputError(
            f"a {kind} of shape {shape}, of which only a part may be here", remedy=remedy
        )
    if value.layout != torch.strided or value.is_quantized:
        raise InputError(
            f"a tensor of shape {shape} that is not dense in memory", remedy="save its .to_dense()"
        )
    if value.is_meta:
        raise InputError(
            f"a tensor of shape {shape} on the meta device", remedy="give it memory and values"
        )
    if name not in DTYPES:
        remedy = (
            "save torch.view_as_real of it" if value.is_complex() else "save .view(torch.uint8)"
        )
        raise InputError(f"a tensor of {name}, which the format lacks", remedy=remedy)
    nbytes = value.numel() * value.element_size()
    return Leaf(np.broadcast_to(np.zeros(1, np.uint8), nbytes), name, shape, "torch")


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
