"""Converts nested state (dicts, lists, numbers, text, arrays) to named arrays and a JSON tree.

Arrays get their path as name (``model.layers.0.weight``), so that a checkpoint is readable without
Headway; pickle is not used.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from headway.ckpt_store.dtypes import DTYPES
from headway.common.errors import CorruptError, InputError

_LONGEST_INT_BITS = 10_000
"""Python converts no longer numbers to text and back (4,300 digits)."""


@dataclass(frozen=True)
class Leaf:
    """An array of a state: its bytes (1-D uint8), their dtype and shape, and its kind.

    The kind is ``numpy``, ``scalar`` (a number of numpy) or ``torch``.
    """

    data: npt.NDArray[np.uint8]
    dtype: str
    shape: tuple[int, ...]
    kind: str = "numpy"


@dataclass
class Flat:
    """A flattened state: leaves by name, in order, and the tree as JSON data."""

    leaves: dict[str, Leaf] = field(default_factory=dict)
    tree: Any = None

    def extra(self) -> bytes:
        """The tree as bytes, for a checkpoint's extra state."""
        return json.dumps({"tree": self.tree}, separators=(",", ":"), allow_nan=False).encode()


ToLeaf = Callable[[Any], Leaf | None]
"""Converts a tensor, as ``torch_client.to_leaf`` does; None for a value that is not a tensor."""


def flatten(state: Any, to_leaf: ToLeaf) -> Flat:
    """Flatten ``state``. Arrays on the CPU are views, not copies: save them before changing them.

    Raises:
        InputError: a value of a type that cannot be saved; names the path and the type.
    """
    flat = Flat()
    try:
        flat.tree = _node(state, (), flat, to_leaf)
    except RecursionError:
        raise InputError(
            "the state contains itself, or is nested too deeply to be saved",
            remedy="save a state of a few levels",
        ) from None
    return flat


def unflatten(extra: bytes, leaves: Mapping[str, Leaf], from_leaf: Callable[[Leaf], Any]) -> Any:
    """Rebuild a state; ``from_leaf`` makes a tensor from a leaf of the kind ``torch``.

    Raises:
        CorruptError: ``extra`` is not a tree of ``flatten``, or names a missing array.
    """
    try:
        return _value(json.loads(extra)["tree"], leaves, from_leaf)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CorruptError(
            f"the checkpoint's state tree cannot be read: {error!r}",
            remedy="use read_shard if it was not saved by CheckpointClient",
        ) from error


def _node(value: Any, path: tuple[str, ...], flat: Flat, to_leaf: ToLeaf) -> Any:
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int and value.bit_length() <= _LONGEST_INT_BITS:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        items = [
            [_key(k, path), _node(v, (*path, str(k)), flat, to_leaf)] for k, v in value.items()
        ]
        return {"dict": items}
    if type(value) in (list, tuple):
        items = [_node(item, (*path, str(i)), flat, to_leaf) for i, item in enumerate(value)]
        return {type(value).__name__: items}
    try:
        leaf = _leaf_of_array(value) or to_leaf(value)
    except InputError as error:
        raise InputError(
            f"the state's {_place(path)} is {error.message}", remedy=error.remedy
        ) from None
    if leaf is not None:
        return _add(leaf, path, flat)
    raise InputError(
        f"the state's {_place(path)} is a {type(value).__name__}, which cannot be saved",
        remedy="use dicts, lists, numbers, text, numpy arrays and torch tensors",
    )


def _place(path: tuple[str, ...]) -> str:
    return ".".join(path) or "root"


def _add(leaf: Leaf, path: tuple[str, ...], flat: Flat) -> dict[str, Any]:
    name = unique = ".".join(path) or "state"
    count = 1
    while unique in flat.leaves:
        count += 1
        unique = f"{name}#{count}"
    flat.leaves[unique] = leaf
    return {"array": unique, "dtype": leaf.dtype, "kind": leaf.kind, "shape": list(leaf.shape)}


def _leaf_of_array(value: Any) -> Leaf | None:
    """The bytes of an array or a number of numpy; None for any other value. Raises InputError."""
    if not isinstance(value, np.ndarray | np.generic):
        return None
    is_scalar, array = isinstance(value, np.generic), np.asarray(value)
    if not is_scalar and type(value) not in (np.ndarray, np.memmap):
        raise InputError(
            f"a {type(value).__name__}, of which only the numbers would be kept",
            remedy="save its parts as plain arrays",
        )
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        what = f"a {type(value).__name__}" if is_scalar else "an array"
        raise InputError(f"{what} of {array.dtype}", remedy="use plain native number types")
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Leaf(data, array.dtype.name, array.shape, "scalar" if is_scalar else "numpy")


def _value(node: Any, leaves: Mapping[str, Leaf], from_leaf: Callable[[Leaf], Any]) -> Any:
    if not isinstance(node, dict):
        return node
    if "array" in node:
        stored = leaves[node["array"]]
        leaf = Leaf(stored.data, node["dtype"], tuple(node["shape"]), node["kind"])
        if leaf.kind == "torch":
            return from_leaf(leaf)
        return _array(leaf)[()] if leaf.kind == "scalar" else _array(leaf)
    ((kind, content),) = node.items()
    match kind:
        case "dict":
            return {key: _value(item, leaves, from_leaf) for key, item in content}
        case "list":
            return [_value(item, leaves, from_leaf) for item in content]
        case "tuple":
            return tuple(_value(item, leaves, from_leaf) for item in content)
        case "float":
            return float(content)
        case "bytes":
            return base64.b64decode(content, validate=True)
    raise ValueError(f"unknown node {kind!r}")


def _array(leaf: Leaf) -> npt.NDArray[Any]:
    return leaf.data.view(np.dtype(leaf.dtype)).reshape(leaf.shape)


def _key(key: Any, path: tuple[str, ...]) -> str | int:
    if type(key) not in (str, int):
        raise InputError(
            f"a key below {'.'.join(path) or 'the root'} is a {type(key).__name__}",
            remedy="use text or whole numbers",
        )
    return cast("str | int", key)
