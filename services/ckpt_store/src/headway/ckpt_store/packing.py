"""Packs a state's leaves into contiguous bytes with a layout, the content of a shard, and back."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.ckpt_store.manifest import Part
from headway.ckpt_store.tree import Flat, Leaf, flatten, unflatten
from headway.common.errors import CorruptError

ALIGN_BYTES = 64


def leaves_of(state: Any, *, is_outline: bool = False) -> Flat:
    """Return the state's arrays and tensors by path, and a description of the rest.

    With ``is_outline`` the bytes of tensors are left out.

    Raises:
        InputError: see ``flatten``.
    """
    return flatten(state, _outline_of_tensor if is_outline else _leaf_of_tensor)


def lay_out(flat: Flat, rank: int, world_size: int) -> tuple[dict[str, Any], int]:
    """(layout, total bytes); each leaf starts at a multiple of ``ALIGN_BYTES``."""
    tensors, offset = [], 0
    for name, leaf in flat.leaves.items():
        tensors.append(
            {
                "name": name,
                "field": "",
                "dtype": leaf.dtype,
                "offset": offset,
                "nbytes": leaf.data.nbytes,
                "global_shape": list(leaf.shape),
                "tp_dim": None,
                "tp_rank": 0,
                "tp_size": 1,
            }
        )
        offset += -(-leaf.data.nbytes // ALIGN_BYTES) * ALIGN_BYTES
    mesh = {"tp": 1, "pp": 1, "dp": world_size, "vp": 1, "rank": rank}
    return {"tensors": tensors, "mesh": mesh}, max(offset, ALIGN_BYTES)


def pack(flat: Flat, layout: dict[str, Any], data: npt.NDArray[np.uint8]) -> None:
    """Copy the leaves to their places in ``data``; gaps become zero."""
    data[:] = 0
    for tensor, leaf in zip(layout["tensors"], flat.leaves.values(), strict=True):
        start = tensor["offset"]
        data[start : start + leaf.data.nbytes] = leaf.data


def unpack(part: Part, data: npt.NDArray[np.uint8], extra: bytes) -> Any:
    """The state in a shard; its arrays share the memory of ``data``. Raises CorruptError."""
    leaves = {}
    try:
        for tensor in part.layout["tensors"]:
            piece = data[tensor["offset"] : tensor["offset"] + tensor["nbytes"]]
            leaves[tensor["name"]] = Leaf(piece, tensor["dtype"], tuple(tensor["global_shape"]))
    except (KeyError, TypeError) as error:
        raise CorruptError(f"the layout of rank {part.rank} cannot be read: {error!r}") from error
    return unflatten(extra, leaves, _tensor)


def _leaf_of_tensor(value: Any) -> Leaf | None:
    if "torch" not in sys.modules:
        return (
            None  # a state with tensors implies that torch is loaded; other states must not load it
        )
    from headway.ckpt_store import torch_client

    return torch_client.to_leaf(value)


def _outline_of_tensor(value: Any) -> Leaf | None:
    if "torch" not in sys.modules:
        return None
    from headway.ckpt_store import torch_client

    return torch_client.outline(value)


def _tensor(leaf: Leaf) -> Any:
    from headway.ckpt_store import torch_client

    return torch_client.from_leaf(leaf)
