"""What a pipeline's executor costs: steps of sleeping stages against the schedule's own length.

    python -m benchmarks.train.executor [--rounds 5] [--only "2 ranks, 1 MiB"]

Forward 20 ms, backward 40 ms per rank and micro-batch, 8 micro-batches. The theoretical length is
``m * 3 tf * (1 + (p - 1) / (m v))`` (Megatron-LM, arXiv 2104.04473, section 2.2).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.train.report import Options, measure, parse
from benchmarks.train.rounds import Plan, compare
from benchmarks.train.sides import Spec

MICRO_BATCHES = 8
FORWARD_S = 0.02
CHUNKS = {"1f1b": 1, "interleaved": 2}


def theory_s(pp: int, vp: int, micro_batches: int, forward_s: float) -> float:
    """Seconds of a step if no message took any time."""
    return micro_batches * 3 * forward_s * (1 + (pp - 1) / (micro_batches * vp))


def row(options: Options, pp: int, mib: int, schedule: str, _folder: Path) -> dict[str, Any]:
    """Both executors on one set-up."""
    vp = CHUNKS[schedule]
    forward_s = 0.001 if options.tiny else FORWARD_S
    common = {
        "schedule": schedule,
        "vp": vp,
        "micro_batches": MICRO_BATCHES,
        "forward_s": forward_s,
        "message_bytes": mib << 20,
    }
    groups = {
        side: [Spec(side, "benchmarks.train.sleepers:run", {}, pp, 1, {"side": side, **common})]
        for side in ("headway", "torch")
    }
    found = compare(groups, Plan(options.rounds, steps=1 if options.tiny else 2))
    expected_s = theory_s(pp, vp, MICRO_BATCHES, forward_s)
    for side in found["sides"].values():
        over = statistics.median(side["step_s"]) / expected_s - 1
        side["over_theory_percent"] = round(100 * over, 1)
    return {"theory_s": round(expected_s, 4), "ranks": pp, "mib": mib, "schedule": schedule} | found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every set-up."""
    options = parse(argv, "executor", rounds=5)
    sizes = [(2, 1)] if options.tiny else [(2, 1), (2, 4), (4, 1), (4, 4)]
    makers = {
        f"{pp} ranks, {mib} MiB, {schedule}": partial(row, options, pp, mib, schedule)
        for pp, mib in sizes
        for schedule in CHUNKS
    }
    return measure(options, makers, {})


if __name__ == "__main__":
    sys.exit(main())
