"""Two and four processes: data, tensor and pipeline parallelism, ours and torch's.

    python -m benchmarks.train.several [--only "tp 2"] [--rounds 7]

One thread per process, gloo on loopback. Schedules on two cores: with four processes another rank
fills a bubble, so ``executor`` judges a schedule, not this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.train.outside import megatron_specs
from benchmarks.train.report import Options, measure, parse
from benchmarks.train.rounds import compare
from benchmarks.train.shapes import Shape
from benchmarks.train.sides import Spec
from benchmarks.train.variants import (
    PIPE,
    PLAIN,
    TENSOR,
    micro_batches,
    options_of,
    ours,
    peer,
    save_weights,
    shape_of,
)

Groups = Mapping[str, Sequence[Spec]]
PIPELINE_MICRO = 1


def data_parallel(options: Options, shape: Shape, weights: Path) -> Groups:
    """Two replicas: DDP and FSDP2, compiled, reducing once per step."""
    micros = micro_batches(options, shape, 2)
    common: dict[str, Any] = {"world": 2, "micros": micros}
    compiles: dict[str, Any] = {"compile": options_of(options)[:1]}
    return {
        "headway": ours(options, shape, **common, variants=[{"parallel.dp": 2}]),
        "ddp": peer(PLAIN, options, shape, weights, **common, how=["ddp"], **compiles),
        "fsdp2": peer(PLAIN, options, shape, weights, **common, how=["fsdp"], **compiles),
    }


def tensor_parallel(options: Options, shape: Shape, weights: Path) -> Groups:
    """Two halves of every layer: DTensor with sequence parallelism, compiled and eager."""
    micros = micro_batches(options, shape)
    common: dict[str, Any] = {"world": 2, "micros": micros}
    variants = [{"parallel.tp": 2}]
    found: dict[str, Sequence[Spec]] = {
        "headway": ours(options, shape, **common, variants=variants),
        "dtensor": peer(TENSOR, options, shape, weights, **common, compile=options_of(options)),
    }
    if options.peers:
        found["megatron-core"] = megatron_specs(options, shape, world=2)
    return found


def pipeline(options: Options, shape: Shape, weights: Path, *, pp: int) -> Groups:
    """``pp`` stages: the best schedule of each side."""
    variants: list[dict[str, Any]] = [
        {"parallel.pp": pp, "parallel.schedule": name}
        for name in ("gpipe", "1f1b", "zb-h1", "zb-v")
    ]
    variants.append({"parallel.pp": pp, "parallel.schedule": "interleaved", "parallel.vp": 2})
    names = ["gpipe", "1f1b", "interleaved", "zbv"]
    if options.tiny:
        variants, names = variants[1:2], names[1:2]
    common: dict[str, Any] = {"world": pp, "micros": [PIPELINE_MICRO]}
    return {
        "headway": ours(options, shape, **common, variants=variants),
        "torch": peer(
            PIPE,
            options,
            shape,
            weights,
            **common,
            schedule=names,
            compile=options_of(options)[:1],
        ),
    }


GroupsOf = Callable[[Options, Shape, Path], Groups]
ROWS: dict[str, tuple[str, GroupsOf]] = {
    "dp 2": ("10m", data_parallel),
    "tp 2": ("10m", tensor_parallel),
    "pp 2": ("thin", lambda *given: pipeline(*given, pp=2)),
    "pp 4": ("thin", lambda *given: pipeline(*given, pp=4)),
}


def row(options: Options, model: str, groups_of: GroupsOf, folder: Path) -> dict[str, Any]:
    """Both sides on one layout."""
    shape = shape_of(options, model)
    weights = save_weights(options, shape, folder)
    found = compare(groups_of(options, shape, weights), options.plan)
    return {"shape": shape.to_dict(), "parameters": shape.parameters} | found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every layout."""
    options = parse(argv, "several")
    names = [name for name in ROWS if not (options.tiny and name == "pp 4")]
    return measure(options, {name: partial(row, options, *ROWS[name]) for name in names}, {})


if __name__ == "__main__":
    sys.exit(main())
