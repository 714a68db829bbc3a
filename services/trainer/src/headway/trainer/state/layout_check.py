"""Accepts a snapshot only if it stores every tensor where this model expects it.

Equal sizes are not enough: parameters in another order, or moments in the place of weights, would
load without an error and train garbage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

MESH = ("tp", "pp", "dp", "vp", "rank")
ENTRY = (
    "dtype",
    "offset",
    "nbytes",
    "global_shape",
    "tp_dim",
    "tp_rank",
    "tp_size",
    "flat_start",
    "flat_stop",
)
"""Keys that must be equal for each tensor, besides name and field, which are compared first; keys
of other versions are ignored."""


def difference(mine: bytes, found: bytes | Mapping[str, Any]) -> str:
    """The first difference between two layouts, with both values; "" if they are equal."""
    if mine == found:
        return ""
    here = json.loads(mine)
    try:
        there = json.loads(found) if isinstance(found, bytes) else found
        tensors, mesh = list(there["tensors"]), dict(there["mesh"])
    except (ValueError, KeyError, TypeError):
        return "it does not list any tensors"
    for key in MESH:
        if mesh.get(key, 1) != here["mesh"][key]:
            return f"its mesh has {key}={mesh.get(key, 1)}, this rank {key}={here['mesh'][key]}"
    for index, (theirs, ours) in enumerate(zip_longest(tensors, here["tensors"])):
        if theirs is None or ours is None or _name(theirs) != _name(ours):
            return f"tensor {index} is {_name(theirs)} there, {_name(ours)} here"
        for key in ENTRY:
            if theirs.get(key) != ours[key]:
                return f"{_name(ours)} has {key}={theirs.get(key)!r} there, {ours[key]!r} here"
    return ""


def _name(entry: Any) -> str:
    return f"{entry['name']}|{entry['field']}" if entry else "missing"
