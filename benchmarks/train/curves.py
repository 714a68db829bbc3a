"""Loss curves of two sides from the same weights on the same data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.train.sides import SideFailed, Spec, team


def compare_curves(specs: Mapping[str, Spec], steps: int) -> dict[str, Any]:
    """Each side's losses, and how far each other one is from the first: largest and last."""
    losses: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    for name, spec in specs.items():
        try:
            with team(spec) as members:
                losses[name] = members.turn(steps).losses
        except SideFailed as error:
            failed[name] = str(error)
    found: dict[str, Any] = {"losses": losses, "failed": failed, "distance": {}}
    names = list(losses)
    for name in names[1:]:
        apart = [abs(a - b) for a, b in zip(losses[names[0]], losses[name], strict=True)]
        found["distance"][name] = {"largest": max(apart), "first": apart[0], "last": apart[-1]}
    return found
