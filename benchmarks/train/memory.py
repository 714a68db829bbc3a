"""Peak resident memory of each process at equal work, in a fresh process per side.

    python -m benchmarks.train.memory [--only "one process"]

Two peaks: ``peak_mib`` of whole steps after the first two, which contain compilation, and
``peak_with_start_mib`` of everything. Both include the libraries (``libraries_mib``, before the
model is built). Tokens per GB are those of one micro-batch set per step over the sum of the ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.train.report import Options, measure, parse
from benchmarks.train.shapes import Shape
from benchmarks.train.sides import SideFailed, Spec, team
from benchmarks.train.variants import (
    PIPE,
    PLAIN,
    TENSOR,
    options_of,
    ours,
    peer,
    save_weights,
    shape_of,
)

STEPS = 3
ROWS = ("one process", "dp 2", "tp 2", "pp 2, 1f1b")


def specs_of(options: Options, shape: Shape, weights: Path) -> dict[str, dict[str, Spec]]:
    """Row -> its sides. Every side of a row has the same micro-batches."""
    compiled = {"compile": options_of(options)[:1]}

    def mine(micro: int, world: int = 1, **settings: Any) -> Spec:
        keys = {f"parallel.{key}": value for key, value in settings.items()}
        return ours(options, shape, world=world, micros=[micro], variants=[keys])[0]

    def theirs(run: str, micro: int, world: int = 1, **how: Any) -> Spec:
        choices = {key: [value] for key, value in how.items()} | compiled
        return peer(run, options, shape, weights, world=world, micros=[micro], **choices)[0]

    whole, half = shape.batch, shape.batch // 2
    return {
        "one process": {"headway": mine(whole), "torch": theirs(PLAIN, whole)},
        "dp 2": {
            "headway": mine(half, 2, dp=2),
            "ddp": theirs(PLAIN, half, 2, how="ddp"),
            "fsdp2": theirs(PLAIN, half, 2, how="fsdp"),
        },
        "tp 2": {"headway": mine(half, 2, tp=2), "dtensor": theirs(TENSOR, half, 2)},
        "pp 2, 1f1b": {
            "headway": mine(1, 2, pp=2, schedule="1f1b"),
            "torch": theirs(PIPE, 1, 2, schedule="1f1b"),
        },
    }


def peaks(spec: Spec, shape: Shape) -> dict[str, Any]:
    """The peaks of one side's processes."""
    with team(spec) as members:
        start = members.turn(2).peak_kib
        steady = members.turn(STEPS, reset_peak=True).peak_kib
        libraries = members.resident_kib
    return {
        "variant": spec.name,
        "peak_mib": [round(kib / 1024, 1) for kib in steady],
        "peak_with_start_mib": [round(kib / 1024, 1) for kib in start],
        "libraries_mib": [round(kib / 1024, 1) for kib in libraries],
        "tokens_per_gb": round(shape.tokens / (sum(steady) * 1024 / 1e9), 1),
    }


def _ratios(sides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Other side -> its worst rank's peak over our worst rank's, above the libraries."""

    def own(side: Mapping[str, Any]) -> float:
        return max(
            peak - base for peak, base in zip(side["peak_mib"], side["libraries_mib"], strict=True)
        )

    if "headway" not in sides:
        return {}
    ours_mib = own(sides["headway"])
    values = {name: own(side) / ours_mib for name, side in sides.items() if name != "headway"}
    return {
        name: {"rounds": [round(value, 3)], "median": round(value, 3)}
        for name, value in values.items()
    }


def row(options: Options, name: str, folder: Path) -> dict[str, Any]:
    """Every side of a row that works here."""
    shape = shape_of(options, "10m")
    weights = save_weights(options, shape, folder)
    found: dict[str, Any] = {"shape": shape.to_dict(), "sides": {}, "failed": {}}
    for side, spec in specs_of(options, shape, weights)[name].items():
        try:
            found["sides"][side] = peaks(spec, shape)
        except SideFailed as error:
            found["failed"][spec.name] = str(error)
    return found | {"ratios": _ratios(found["sides"])}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every row."""
    options = parse(argv, "memory", rounds=1)
    return measure(options, {name: partial(row, options, name) for name in ROWS}, {})


if __name__ == "__main__":
    sys.exit(main())
