"""How much of the collectives' time a step hides, with sleeping ranks and paced collectives.

    python -m benchmarks.train.overlap [--rounds 5] [--only buckets]

Two rows. Buckets: 1F1B, two stages, two replicas, 4 buckets, the reduction of a stage as long as a
micro-batch's backward and its gather as long as a forward; at most 75 % can be hidden on the first
stage, since nothing comes before its first gather and after its last reduction. Pieces: the linear
maps of two layers over two ranks, 4 pieces, each collective as long as a twentieth of a layer's
forward.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.train.report import Options, measure, parse
from benchmarks.train.rounds import Plan, compare
from benchmarks.train.sides import Spec

BUCKET_FORWARD_S = 0.02
LAYER_FORWARD_S = 0.08
COLLECTIVES_OF_LAYER = 10
"""Two gathers and two scatters of the forward, as many of the backward, and two more gathers of
inputs for weight gradients."""


def row(
    options: Options,
    what: str,
    world: int,
    message_s: float,
    sides: Mapping[str, Mapping[str, Any]],
    common: Mapping[str, Any],
    _folder: Path,
) -> dict[str, Any]:
    """One comparison: as we do it, one after the other, and with collectives that take no time."""
    groups = {
        side: [
            Spec(side, "benchmarks.train.paced:run", {}, world, 1, {"what": what, **common, **more})
        ]
        for side, more in sides.items()
    }
    found = compare(groups, Plan(options.rounds, steps=1 if options.tiny else 4))
    least_s = found["sides"].get("no time", {}).get("step_s", [])
    for side, of in found["sides"].items():
        hidden = hidden_percent(of.get("step_s", []), least_s, message_s)
        if hidden and side != "no time":
            of["hidden_percent"] = statistics.median(hidden)
            of["hidden_rounds"] = hidden
    return {"message_s": round(message_s, 4)} | found


def hidden_percent(
    step_s: Sequence[float], least_s: Sequence[float], message_s: float
) -> list[float]:
    """In each round, the share of ``message_s`` by which a step is not longer than ``least_s``."""
    return [
        round(100 * (1 - (seconds - least) / message_s), 1)
        for seconds, least in zip(step_s, least_s, strict=False)
    ]


def makers(options: Options) -> dict[str, partial[dict[str, Any]]]:
    """Both rows."""
    shorter = 20 if options.tiny else 1
    forward_s, layer_s = BUCKET_FORWARD_S / shorter, LAYER_FORWARD_S / shorter
    none = {"gather_s": 0.0, "reduce_s": 0.0}
    buckets = {"micro_batches": 8, "forward_s": forward_s}
    times = {"gather_s": forward_s, "reduce_s": 2 * forward_s}
    pieces, each = {"forward_s": layer_s}, layer_s / 20
    same = {"gather_s": each, "reduce_s": each}
    return {
        "buckets: 1f1b, pp 2, dp 2": partial(
            row,
            options,
            "buckets",
            4,
            3 * forward_s,
            {
                "headway": {**times, "overlap": True},
                "one by one": {**times, "overlap": False},
                "no time": {**none, "overlap": True},
            },
            buckets,
        ),
        "pieces: tp 2": partial(
            row,
            options,
            "pieces",
            2,
            2 * COLLECTIVES_OF_LAYER * each,
            {
                "headway": {**same, "pieces": 4},
                "one piece": {**same, "pieces": 1},
                "no time": {**none, "pieces": 1},
            },
            pieces,
        ),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both rows."""
    options = parse(argv, "overlap", rounds=5)
    return measure(options, makers(options), {})


if __name__ == "__main__":
    sys.exit(main())
