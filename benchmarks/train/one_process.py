"""One process: ours, compiled plain torch, and the measured limit of the same products.

    python -m benchmarks.train.one_process [--only "10m, 1 thread"] [--rounds 7]

The limit is the time that all matrix products and the attention of one step take alone, measured in
the same rounds; ``share_of_limit`` is that time over a side's.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.train.outside import litgpt_specs, torchtitan_error
from benchmarks.train.report import Options, measure, parse, write
from benchmarks.train.rounds import Plan, compare
from benchmarks.train.sides import SideFailed, Spec, team
from benchmarks.train.variants import (
    PLAIN,
    limits,
    micro_batches,
    options_of,
    ours,
    peer,
    save_weights,
    shape_of,
)

CURVE_STEPS = 40


def row(options: Options, name: str, threads: int, folder: Path) -> dict[str, Any]:
    """One model with one number of threads."""
    shape = shape_of(options, name)
    weights, micros = save_weights(options, shape, folder), micro_batches(options, shape)
    common: dict[str, Any] = {"threads": threads, "micros": micros}
    compiled = options_of(options)[:1]
    # a variant may take a minute to compile, so these have one
    few: dict[str, Any] = {"threads": threads, "micros": micros[-1:]}
    groups: dict[str, list[Spec]] = {
        "headway": ours(options, shape, **common),
        "torch": peer(PLAIN, options, shape, weights, **common, compile=compiled),
    }
    if options.is_narrow:
        groups["torch, pure bf16"] = peer(
            PLAIN, options, shape, weights, **few, precision="pure", compile=compiled
        )
    if options.peers:
        groups["litgpt"] = litgpt_specs(options, shape, **few)
    groups["limit"] = limits(options, shape, threads, micros)
    found = compare(groups, _plan(options, name))
    limit_s = found["sides"].get("limit", {}).get("median_s")
    for side in found["sides"].values():
        if limit_s and side.get("median_s"):
            side["share_of_limit"] = round(limit_s / side["median_s"], 3)
            flops = shape.flops_per_token() * shape.tokens
            side["gflops"] = round(flops / side["median_s"] / 1e9, 1)
    return {"shape": shape.to_dict(), "parameters": shape.parameters, "threads": threads} | found


def _plan(options: Options, name: str) -> Plan:
    """Fewer and shorter turns for the large model, whose steps take seconds."""
    if name == "50m" and not options.tiny:
        return replace(options.plan, rounds=min(options.rounds, 5), steps=1)
    return options.plan


def curves(options: Options, folder: Path, best: dict[str, Any]) -> dict[str, Any]:
    """Our losses and plain torch's, by the variants that were fastest."""
    shape = shape_of(options, "10m")
    weights = save_weights(options, shape, folder)
    micros = micro_batches(options, shape)[:1]
    specs = [
        *ours(options, shape, threads=2, micros=micros),
        *peer(
            PLAIN, options, shape, weights, threads=2, micros=micros, compile=options_of(options)
        ),
    ]
    named = {spec.name: spec for spec in specs}
    first, last = specs[0], specs[-1]
    chosen = {"headway": named.get(best.get("headway"), first)}
    chosen["torch"] = named.get(best.get("torch"), last)
    return compare_curves(chosen, 4 if options.tiny else CURVE_STEPS)


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


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every model and number of threads, then the curves."""
    options = parse(argv, "one_process")
    rows: dict[str, Any] = {}
    more: dict[str, Any] = {"torchtitan": torchtitan_error(options)}
    wanted = [("10m", 1)] if options.tiny else [("10m", 1), ("10m", 2), ("50m", 1), ("50m", 2)]
    makers = {
        f"{name}, {threads} thread{'s' if threads > 1 else ''}": partial(
            row, options, name, threads
        )
        for name, threads in wanted
    }
    code = measure(options, makers, rows, **more)
    if not options.wants("curves"):
        return code
    best: dict[str, Any] = {}
    for found in rows.values():
        for side, values in found["sides"].items():
            best.setdefault(side, values.get("variant", ""))
    with tempfile.TemporaryDirectory() as folder:
        more["curves"] = curves(options, Path(folder), best)
    return write(options, rows, **more)


if __name__ == "__main__":
    sys.exit(main())
