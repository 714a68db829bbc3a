"""How much of the collectives' time a step hides, with sleeping ranks and paced collectives.

    python -m benchmarks.train.overlap [--rounds 5] [--only buckets]

Two rows. Buckets: 1F1B, two stages, two replicas, 4 buckets, the reduction of a stage as long as a
micro-batch's backward and its gather as long as a forward; at most 75 % can be hidden on the first
stage, whose last bucket has nothing after it. Pieces: the linear maps of two layers over two ranks,
4 pieces, each collective as long as a twentieth of a layer's forward.
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
"""Two gathers and two scatters there, and as many back with two gathers of what was kept."""


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
    step_s = {side: statistics.median(of["step_s"]) for side, of in found["sides"].items()}
    for side, seconds in step_s.items():
        exposed = (seconds - step_s["no time"]) / message_s
        found["sides"][side]["hidden_percent"] = round(100 * (1 - exposed), 1)
    return {"message_s": round(message_s, 4)} | found


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
