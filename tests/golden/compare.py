"""Compares what two layouts trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headway.testkit.trainer.layouts import BARS
from headway.testkit.trainer.training import Trained, distance


def world_size(parallel: Mapping[str, Any]) -> int:
    """Ranks of a layout."""
    return math.prod(parallel.get(axis, 1) for axis in ("tp", "pp", "dp"))


def compare(found: Trained, expected: Trained) -> None:
    """Fails unless two runs in fp64 are equal: gradients, parameters, and all curves."""
    for kind in ("grads", "params"):
        worst, name = distance(getattr(found, kind), getattr(expected, kind))
        assert worst < BARS["fp64"], f"{kind} of {name} differ by {worst:.1e} of their norm"
    for curve in ("losses", "norms", "evals"):
        ours, theirs = getattr(found, curve), getattr(expected, curve)
        assert ours.keys() == theirs.keys()
        assert max(abs(ours[step] - theirs[step]) for step in theirs) < BARS["fp64"], curve
