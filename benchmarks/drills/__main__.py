"""Runs the drills: ``python -m benchmarks.drills D1 D7 --seed 3`` or ``--all --times 5``.

Each prints one line. ``--control`` leaves the fault out: what passes then only without a fault is
what the drill is about. The exit code is the number of drills that failed, 125 at most.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.drills import checkpoints, clock, hanging, judge, leaders, means, processes, state
from benchmarks.drills.judge import Judge, Report
from benchmarks.drills.rig import Rig

SKIPPED = "SKIP"


@dataclass(frozen=True)
class Drill:
    """What is done, what must be true after it, and what it needs."""

    act: Callable[[Rig, random.Random, bool], Report]
    judge: Judge
    why_not: Callable[[], str] = lambda: ""
    own_clock: bool = False
    own_disk: bool = False


DRILLS = {
    "D1": Drill(leaders.d1, judge.d1),
    "D2": Drill(leaders.d2, judge.d2),
    "D3": Drill(state.d3, judge.d3, means.no_mount, own_disk=True),
    "D4": Drill(state.d4, judge.d4),
    "D5": Drill(state.d5, judge.d5),
    "D6": Drill(processes.d6, judge.d6, means.no_freezer),
    "D7": Drill(processes.d7, judge.d7),
    "D8": Drill(processes.d8, judge.d8, means.no_freezer),
    "D9": Drill(leaders.d9, judge.d9, means.no_freezer),
    "D10": Drill(leaders.d10, judge.d10, clock.why_not, own_clock=True),
    "D11": Drill(state.d11, judge.d11),
    "D12": Drill(processes.d12, judge.d12),
    "D13": Drill(checkpoints.d13, judge.d13),
    "D14": Drill(checkpoints.d14, judge.d14),
    "D15": Drill(hanging.d15, judge.d15, hanging.why_not),
}


def perform(name: str, seed: int, *, control: bool = False) -> tuple[Report, list[str]]:
    """One drill in a place of its own; returns its report and what is wrong."""
    drill = DRILLS[name]
    with Rig(own_clock=drill.own_clock, own_disk=drill.own_disk) as rig:
        folder, mounts = rig.folder, Path("/proc/mounts")
        report = {**drill.act(rig, random.Random(seed), not control), "faulty": not control}
    wrong = drill.judge(report) + judge.left(report)
    if folder.exists() or str(folder) in mounts.read_text():
        wrong.append(f"{folder} is left")
    return report, wrong


def line(name: str, seed: int, *, control: bool = False) -> tuple[str, Report]:
    """Perform it; returns PASS, FAIL or SKIP, and the report."""
    drill, begun = DRILLS[name], time.monotonic()
    title = f"{name}{' control' if control else ''} seed {seed}"
    if reason := drill.why_not():
        print(f"{SKIPPED} {title}: {reason}", flush=True)
        return SKIPPED, {}
    try:
        report, wrong = perform(name, seed, control=control)
    except Exception as error:
        traceback.print_exc()
        report, wrong = {}, [f"{type(error).__name__}: {error}"[:300]]
    verdict = "FAIL" if wrong else "PASS"
    sound = "all is well without the fault" if control else (drill.judge.__doc__ or "").strip()
    what = "; ".join(wrong) or sound
    print(f"{verdict} {title} ({time.monotonic() - begun:.0f} s): {what}", flush=True)
    return verdict, {**report, "wrong": wrong}


def main(argv: Sequence[str] | None = None) -> int:
    """Perform the drills; returns how many failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="D1..D12")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of the first time; then one more")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--control", action="store_true", help="without the fault")
    parser.add_argument("--out", type=Path, help="a JSON file of all reports")
    options = parser.parse_args(argv)
    names = list(DRILLS) if options.all else [name.upper() for name in options.names]
    if unknown := [name for name in names if name not in DRILLS]:
        parser.error(f"unknown {unknown}: there are {', '.join(DRILLS)}")
    if not names:
        parser.error("name a drill, or use --all")
    verdicts, rows = [], []
    for seed in range(options.seed, options.seed + options.times):
        for name in names:
            verdict, report = line(name, seed, control=options.control)
            verdicts.append(verdict)
            rows.append({"drill": name, "seed": seed, "verdict": verdict, "report": report})
    if options.out:
        facts = {"cores": os.cpu_count(), "date": time.strftime("%Y-%m-%d"), "drills": rows}
        options.out.write_text(json.dumps(facts, indent=1, default=str) + "\n")
    counts = {verdict: verdicts.count(verdict) for verdict in ("PASS", "FAIL", SKIPPED)}
    print(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return min(counts["FAIL"], 125)


if __name__ == "__main__":
    sys.exit(main())
