"""How long do steps take while a service is down? ``python -m benchmarks.service_down``.

One live run; every service is killed repeatedly, each time followed by a quiet stretch of the same
length. A step that overlaps the time from the kill to "everything is well again" counts as one with
the service down; the steps of the quiet stretches are what it is compared with. A step lasts from
the end of the one before to its own end, on each rank, by the flight records.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from headway.console.analysis.events import completed_steps, load_events
from headway.console.cluster import Cluster
from headway.console.run import Run

from benchmarks.drill import CONFIG, SMALL
from benchmarks.faults import SERVICES, Fault, healthy
from benchmarks.hardware import hardware
from benchmarks.striker import Striker

LIMIT = 2.0
"""Times the quiet p99 that the p99 with a service down may reach."""
MIN_QUIET_STEPS = 8


@dataclass
class Span:
    """Monotonic ns from a kill to recovery, and the quiet stretch after it."""

    service: str
    killed_ns: int
    well_ns: int
    until_ns: int = field(default=0)


def kill_and_wait(run: Run, striker: Striker, service: str) -> Span:
    """Kill it, wait until it is back, then as long again."""
    fault = Fault("kill", service)
    before = healthy(run)
    striker.strike(fault)
    well = healthy(run, beyond_step=before.step + 1, fallen=fault.fallen)
    span = Span(service, int(fault.struck_at_s * 1e9), time.monotonic_ns())
    time.sleep((span.well_ns - span.killed_ns) / 1e9)
    healthy(run, beyond_step=well.step + MIN_QUIET_STEPS)
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
        figures = {
            name: np.percentile(np.array(x) / 1e9, [50, 99])
            for name, x in (("down", down), ("quiet", quiet))
        }
        rows[service] = {
            "kills": len(mine),
            "steps_down": len(down),
            "steps_quiet": len(quiet),
            "down_p50_s": figures["down"][0],
            "down_p99_s": figures["down"][1],
            "quiet_p50_s": figures["quiet"][0],
            "quiet_p99_s": figures["quiet"][1],
            "p99_ratio": figures["down"][1] / figures["quiet"][1],
        }
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns 0 when the p99 of every service stays within ``LIMIT``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=12, help="of each service")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    data = f"data.path={Path('data/stdlib').resolve()}"
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="headway-down-")))
    run = cluster.launch(CONFIG, [*SMALL, "train.steps=1000000", data], name="down")
    try:
        first = healthy(run, beyond_step=20)
        striker, services = Striker(run, 0), (*SERVICES, "executor")
        spans = [
            kill_and_wait(run, striker, service)
            for _ in range(options.kills)
            for service in services
        ]
        last = healthy(run)
        rows = compare(spans, step_spans(run))
    finally:
        run.stop()
        run.wait(timeout_s=60)
    for service, row in rows.items():
        print(
            f"{service:>12}: " + ", ".join(f"{key} {value:.3g}" for key, value in row.items()),
            flush=True,
        )
    wrong = [f"{name}: p99 {row['p99_ratio']:.2f} times the quiet one" for name, row in rows.items()
             if row["p99_ratio"] > LIMIT]  # fmt: skip
    if first.generation != last.generation or {r.pid for r in first.ranks} != {
        r.pid for r in last.ranks
    }:
        wrong.append("a worker or the generation changed")
    if options.out:
        facts = {
            "command": "python -m benchmarks.service_down " + " ".join(argv or sys.argv[1:]),
            "hardware": hardware(),
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
        }
        options.out.write_text(
            json.dumps({**facts, "services": rows, "failures": wrong}, indent=1) + "\n"
        )
    print(
        "\n".join(f"FAILED {line}" for line in wrong) or "no service that is down slows the steps"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
