"""Sliding windows and the families of models, next to the plain model of the same shape.

    python -m benchmarks.train.models [--only window] [--rounds 5]

``window``: 4 x 384 at seq 4096, all tokens against a window of 1024, ours and compiled torch, which
takes the window as a mask. ``families``: every preset at 10M parameters; ``of_plain`` is a family's
rate of model FLOPs over the plain model's in the same rounds.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headway.trainer.config.architecture import PRESETS
from headway.trainer.config.memory import model_shape

from benchmarks.train.ours import configure
from benchmarks.train.report import Options, measure, parse
from benchmarks.train.rounds import compare
from benchmarks.train.sides import Spec
from benchmarks.train.variants import PLAIN, options_of, ours, peer, save_weights, shape_of

WINDOW = 1024
GQA = {"model.kv_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    name: {"model.preset": name, **({} if name in ("gpt2", "neox") else GQA)}
    for name in sorted(PRESETS)
    if name != "headway"
}


def window(options: Options, folder: Path) -> dict[str, Any]:
    """Both sides with and without the window."""
    shape = shape_of(options, "long")
    size = shape.seq // 4 if options.tiny else WINDOW
    weights = save_weights(options, shape, folder)
    micros, compiled = [1], options_of(options)[:1]
    short = dataclasses.replace(shape, window=size)
    common: dict[str, Any] = {"micros": micros, "compile": compiled}
    groups = {
        "headway": ours(options, shape, micros=micros, variants=[{"model.window": size}]),
        "headway, all tokens": ours(options, shape, micros=micros),
        "torch": peer(PLAIN, options, short, weights, **common),
        "torch, all tokens": peer(PLAIN, options, shape, weights, **common),
    }
    return {"shape": shape.to_dict(), "window": size} | compare(groups, options.plan)


def families(options: Options, _folder: Path) -> dict[str, Any]:
    """Our side with every preset."""
    shape = shape_of(options, "10m")
    micros = [shape.batch // 2]
    groups: dict[str, Sequence[Spec]] = {"headway": ours(options, shape, micros=micros)}
    for name, changes in FAMILIES.items():
        groups[name] = ours(options, shape, micros=micros, variants=[changes])
    found = compare(groups, options.plan)
    plain = found["sides"].get("headway", {}).get("median_s")
    flops = {"headway": _flops(shape, {})} | {
        name: _flops(shape, changes) for name, changes in FAMILIES.items()
    }
    for name, side in found["sides"].items():
        if plain and side.get("median_s"):
            rate = flops[name] / side["median_s"]
            side["gflops"] = round(rate * shape.tokens / 1e9, 1)
            side["of_plain"] = round(rate / (flops["headway"] / plain), 3)
    return {"shape": shape.to_dict()} | found


def _flops(shape: Any, changes: dict[str, Any]) -> int:
    config = configure(shape, changes)
    return model_shape(config).flops_per_token


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both rows."""
    options = parse(argv, "models", rounds=5)
    makers = {"window": partial(window, options), "families": partial(families, options)}
    return measure(options, makers, {})


if __name__ == "__main__":
    sys.exit(main())
