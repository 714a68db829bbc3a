"""Any nested state (dicts, lists, numbers, text, arrays) as named arrays and a JSON tree, and back. No
pickle.

Arrays get their path as name (``model.layers.0.weight``), so that a checkpoint reads well without Headway.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError, InputError


@dataclass(frozen=True)
class Leaf:
    """An array of a state: its bytes (1-D uint8), how to read them, and what it was (``numpy`` or
    ``torch``)."""

    data: npt.NDArray[np.uint8]
    dtype: str
    shape: tuple[int, ...]
    kind: str = "numpy"


@dataclass
class Flat:
    """A state taken apart: leaves by name, in order, and the tree as JSON-able data."""

    leaves: dict[str, Leaf] = field(default_factory=dict)
    tree: Any = None

    def extra(self) -> bytes:
        """The tree as bytes: what goes into a checkpoint's extra state."""
        return json.dumps({"tree": self.tree}, separators=(",", ":"), allow_nan=False).encode()


class _TensorSide(Protocol):
    def is_tensor(self, value: Any) -> bool: ...
    def to_leaf(self, value: Any) -> Leaf: ...
    def from_leaf(self, leaf: Leaf) -> Any: ...


def flatten(state: Any) -> Flat:
    """Take ``state`` apart. Arrays on the CPU are views, not copies: save them before changing them.

    Raises:
        InputError: a value of a type that has no plain form (it names the path and the type).
    """
    flat = Flat()
    flat.tree = _node(state, (), flat, _tensor_side() if "torch" in sys.modules else None)
    return flat


def unflatten(extra: bytes, leaves: Mapping[str, Leaf]) -> Any:
    """Put a state together again; tensors come back as what they were.

    Raises:
        CorruptError: ``extra`` is no tree of ``flatten``, or names an array that is missing.
    """
    try:
        return _value(json.loads(extra)["tree"], leaves)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CorruptError(
            f"the checkpoint's state tree cannot be read: {error!r}",
            remedy="was it saved by CheckpointClient? read shards of other writers with read_shard",
        ) from error


def _node(value: Any, path: tuple[str, ...], flat: Flat, tensors: _TensorSide | None) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {"dict": [[_key(k, path), _node(v, (*path, str(k)), flat, tensors)] for k, v in value.items()]}
    if type(value) in (list, tuple):
        items = [_node(item, (*path, str(i)), flat, tensors) for i, item in enumerate(value)]
        return {type(value).__name__: items}
    if isinstance(value, np.ndarray | np.generic):
        return _add(_leaf_of_array(np.asarray(value), path), path, flat)
    if tensors is not None and tensors.is_tensor(value):
        return _add(tensors.to_leaf(value), path, flat)
    raise InputError(
        f"the state's {'.'.join(path) or 'root'} is a {type(value).__name__}, which cannot be saved",
        remedy="use dicts, lists, numbers, text, numpy arrays and torch tensors",
    )


def _add(leaf: Leaf, path: tuple[str, ...], flat: Flat) -> dict[str, Any]:
    name = unique = ".".join(path) or "state"
    count = 1
    while unique in flat.leaves:
        count += 1
        unique = f"{name}#{count}"
    flat.leaves[unique] = leaf
    return {"array": unique, "dtype": leaf.dtype, "kind": leaf.kind, "shape": list(leaf.shape)}


def _leaf_of_array(array: npt.NDArray[Any], path: tuple[str, ...]) -> Leaf:
    if array.dtype.hasobject or array.dtype.fields or array.dtype.kind not in "biuf" or not array.dtype.isnative:
        raise InputError(
            f"the state's {'.'.join(path)} is an array of {array.dtype}",
            remedy="use plain native number types",
        )
    return Leaf(np.ascontiguousarray(array).reshape(-1).view(np.uint8), array.dtype.name, array.shape)


def _value(node: Any, leaves: Mapping[str, Leaf]) -> Any:
    if not isinstance(node, dict):
        return node
    if "array" in node:
        return _array(node, leaves[node["array"]])
    ((kind, content),) = node.items()
    match kind:
        case "dict":
            return {key: _value(item, leaves) for key, item in content}
        case "list":
            return [_value(item, leaves) for item in content]
        case "tuple":
            return tuple(_value(item, leaves) for item in content)
        case "float":
            return float(content)
        case "bytes":
            return base64.b64decode(content, validate=True)
    raise ValueError(f"unknown node {kind!r}")


def _array(node: Mapping[str, Any], stored: Leaf) -> Any:
    leaf = Leaf(stored.data, node["dtype"], tuple(node["shape"]), node["kind"])
    if leaf.kind == "torch":
        return _tensor_side().from_leaf(leaf)
    return leaf.data.view(np.dtype(leaf.dtype)).reshape(leaf.shape)


def _key(key: Any, path: tuple[str, ...]) -> str | int:
    if type(key) not in (str, int):
        raise InputError(
            f"a key below {'.'.join(path) or 'the root'} is a {type(key).__name__}",
            remedy="use text or whole numbers",
        )
    return cast("str | int", key)


def _tensor_side() -> _TensorSide:
    # Loaded only for states that hold tensors: whoever has those has torch in memory already, or asks for it.
    from headway.ckpt_store import torch_client

    return torch_client
