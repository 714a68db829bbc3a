"""How long do steps take while a service is down? ``python -m benchmarks.service_down``.

One live run; every service is killed repeatedly, each time followed by a quiet stretch of the same
length. A step that overlaps the time from the kill to "everything is well again" counts as one with
the service down; the steps of the quiet stretches are what it is compared with. A step lasts from
the end of the one before to its own end, on each rank, by the flight records.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from headway.console.analysis.events import completed_steps, load_events
from headway.console.run import Run

from benchmarks.drill.__main__ import SMALL
from benchmarks.drill.catalogue import Strike, named
from benchmarks.drill.local import LocalRun
from benchmarks.drill.look import NODE_SERVICES, healthy, replaced
from benchmarks.drill.rig import Rig
from benchmarks.report import finish, parser

LIMIT = 2.0
"""Times the quiet p99 that the p99 with a service down may reach."""
MIN_QUIET_STEPS = 8
SERVICES = (*NODE_SERVICES, "monitor", "driver", "executor")


@dataclass
class Span:
    """Monotonic ns from a kill to recovery, and the quiet stretch after it."""

    service: str
    killed_ns: int
    well_ns: int
    until_ns: int = field(default=0)


def kill_and_wait(place: LocalRun, service: str) -> Span:
    """Kill it, wait until it is back, then as long again."""
    place.now = strike = Strike(named(f"kill {service}"))
    before = healthy(place.run)
    place.strike()
    well = healthy(place.run, before.step + 1, fallen=strike.fallen)
    span = Span(service, int(strike.struck_at_s * 1e9), time.monotonic_ns())
    time.sleep((span.well_ns - span.killed_ns) / 1e9)
    healthy(place.run, well.step + MIN_QUIET_STEPS)
    span.until_ns = time.monotonic_ns()
    return span


def step_spans(run: Run) -> list[tuple[int, int]]:
    """(begin, end) of every step of every rank in monotonic ns;
    it begins where the step before has ended."""
    done = completed_steps(load_events(run.folder.path)).sort("rank", "step")
    begun = pl.col("end_ns").shift(1).over("rank").alias("begun_ns")
    follows = (pl.col("step") - pl.col("step").shift(1).over("rank") == 1).alias("follows")
    rows = done.with_columns(begun, follows).filter("follows").select("begun_ns", "end_ns")
    return [(int(begin), int(end)) for begin, end in rows.iter_rows()]


def compare(spans: Sequence[Span], steps: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Median and p99 of step times by service,
    beside those of the quiet stretches after its kills."""
    rows = {}
    for service in dict.fromkeys([*(span.service for span in spans), "all"]):
        mine = [span for span in spans if service in (span.service, "all")]
        down = [e - b for b, e in steps if any(b < s.well_ns and e > s.killed_ns for s in mine)]
        quiet = [e - b for b, e in steps if any(b >= s.well_ns and e <= s.until_ns for s in mine)]
        row: dict[str, float] = {"kills": len(mine)}
        for name, spans_ns in (("down", down), ("quiet", quiet)):
            p50_s, p99_s = np.percentile(np.array(spans_ns) / 1e9, [50, 99])
            row[f"steps_{name}"] = len(spans_ns)
            row |= {f"{name}_p50_s": p50_s, f"{name}_p99_s": p99_s}
        rows[service] = {**row, "p99_ratio": row["down_p99_s"] / row["quiet_p99_s"]}
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns 0 when the p99 of every service stays within ``LIMIT``."""
    options = parser(__doc__)
    options.add_argument("--kills", type=int, default=12, help="of each service")
    given = options.parse_args(argv)
    data = f"data.path={Path('data/stdlib').resolve()}"
    with Rig() as rig:
        run = rig.start("down", *SMALL, "train.steps=1000000", data)
        first, place = healthy(run, 20), LocalRun(run, 0)
        spans = [kill_and_wait(place, name) for _ in range(given.kills) for name in SERVICES]
        last = healthy(run)
        rows = compare(spans, step_spans(run))
        rig.finish(run)
    for service, row in rows.items():
        figures = ", ".join(f"{key} {value:.3g}" for key, value in row.items())
        print(f"{service:>12}: {figures}", flush=True)
    wrong = [
        f"{name}: p99 {row['p99_ratio']:.2f} times the quiet one"
        for name, row in rows.items()
        if row["p99_ratio"] > LIMIT
    ]
    if first.generation != last.generation or replaced(first, last):
        wrong.append("a worker or the generation changed")
    good = "no service that is down slows the steps"
    return finish(given.out, wrong, good, services=rows)


if __name__ == "__main__":
    sys.exit(main())
