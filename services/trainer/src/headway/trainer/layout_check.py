"""A snapshot is accepted only if every tensor lies in it where this model keeps it.

Equal sizes are no proof: parameters in another order, or moments in the place of weights, load
without an error and train garbage.
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
"""What must be equal of each tensor beside name and field, which are compared first; keys that only
another version knows are ignored."""


def difference(mine: bytes, found: bytes | Mapping[str, Any]) -> str:
    """The first way in which two layouts differ, with both values; "" if they place all alike."""
    if mine == found:
        return ""
    here = json.loads(mine)
    try:
        there = json.loads(found) if isinstance(found, bytes) else found
        tensors, mesh = list(there["tensors"]), dict(there["mesh"])
    except (ValueError, KeyError, TypeError):
        return "it names no tensors"
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
