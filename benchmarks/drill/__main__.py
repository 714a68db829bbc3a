"""Breaks runs on purpose and judges how they come back: ``python -m benchmarks.drill``.

Without names, each run gets a seeded plan of faults, struck one after the other, each only after
the run is whole again. At the end nothing may be degraded, and the digest of the final parameters
is compared with the undisturbed run's. ``D1`` to ``D15`` are drills by script; each prints one
line, and ``--control`` leaves its fault out: what passes then only without a fault is what the
drill is about. ``planned`` ends a run on purpose and resumes it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.testkit.machines import Machines
from headway.testkit.machines.slurm import Slurm

from benchmarks.drill import machines as bed
from benchmarks.drill import planned, slurm
from benchmarks.drill.catalogue import named
from benchmarks.drill.drilled import DrilledRun, drilled
from benchmarks.drill.drills import DRILLS, report
from benchmarks.drill.judge import judge
from benchmarks.drill.local import LocalRun
from benchmarks.drill.plan import cannot, plan, witness
from benchmarks.drill.rig import Rig
from benchmarks.report import finish, parser

SMALL = (
    "model.hidden=128", "model.heads=4", "model.seq_len=128", "model.vocab_size=8192",
    "train.dtype=fp32", "train.eval_batches=1", "train.eval_every=0", "train.sample_tokens=0",
    "ckpt.durable_every=5", "recovery.max_node_failures=1000",
)  # fmt: skip
"""Of a local run: 4 ranks, 0.33 s a step; an hour of faults is not to move ranks to the spare."""
STEPS_PER_FAULT = {"local": 75, "machines": 250}
"""A run must not end before its last fault: some 25 s, more than most faults take."""
FASTEST = 10
"""Steps per second at most, while one fault that is struck each time lasts."""
Launch = Callable[[str, int, int], DrilledRun]
"""Starts a run by name; the seed decides where faults hit, but for one rank, -1 for none."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when every promise held, else how many did not, 125 at most."""
    options = _parse(argv)
    missing = "" if options.place == "local" else Machines.missing()
    if missing := missing or (Slurm.missing() if options.place == "slurm" else ""):
        print(f"no separate machines here: {missing}", file=sys.stderr)
        return 2
    if options.names == ["PLANNED"]:
        ends, failures = planned.report(options.times or 10, options.seed)
        return finish(options.out, failures, "all resumed", ends=ends)
    if options.names:
        seeds = range(options.seed, options.seed + (options.times or 1))
        rows, failures = report(options.names, seeds, control=options.control)
        counts = {word: [row["verdict"] for row in rows].count(word) for word in ("PASS", "SKIP")}
        good = ", ".join(f"{number} {word}" for word, number in counts.items())
        return finish(options.out, failures, good, drills=rows)
    if options.place == "slurm":
        return _on_slurm(options)
    reference, reports, failures = _struck(options)
    num_faults = sum(len(one["faults"]) for one in reports)
    good = f"all {num_faults} faults recovered; the digests are equal"
    return finish(options.out, failures, good, reference=reference, runs=reports)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    add = options.add_argument
    add(
        "names",
        nargs="*",
        type=str.upper,
        metavar="D1..D15|planned",
        help="scripts; without: a plan of faults",
    )
    add("--all", action="store_true", help="all of D1 to D15")
    add("--times", type=int, default=0, help="of each script; ends, of planned (0: once; 10 ends)")
    add("--control", action="store_true", help="scripts without their fault")
    add("--place", choices=("local", "machines", "slurm"), default="local")
    add("--faults", type=int, default=60, help="of all runs together")
    add("--runs", type=int, default=0, help="0: three local ones, or one on machines")
    add("--only", default="", metavar="FAULT", help="strike this one each time: 'kill worker'")
    add("--steps", type=int, default=0, help="of each run; 0: enough for its faults")
    add("--seed", type=int, default=0)
    add("--corpus", type=Path, default=Path("data/stdlib"), help="of runs with a plan")
    add("--set", action="append", default=[], dest="overrides", metavar="TABLE.KEY=VALUE")
    found = options.parse_args(argv)
    found.names = list(DRILLS) if found.all else found.names
    unknown = [name for name in found.names if name not in DRILLS]
    if unknown and found.names != ["PLANNED"]:
        options.error(f"unknown {unknown}: there are {', '.join(DRILLS)}, and planned alone")
    if found.only and found.place != "slurm":
        try:
            if found.place not in named(found.only).places:
                options.error(f"{found.only!r} cannot be struck at place {found.place}")
        except ValueError as error:
            options.error(str(error))
    return found


def _struck(options: argparse.Namespace) -> tuple[str, list[dict[str, Any]], list[str]]:
    """Digest of the undisturbed run, reports of the others, and what did not hold."""
    without = cannot() if options.place == "local" else {}
    for kind, reason in without.items():
        print(f"without {kind}: {reason}", flush=True)
    num_runs = options.runs or (3 if options.place == "local" else 1)
    each = max(2, options.faults // num_runs)
    lasts_s = named(options.only).seconds if options.only else 0.0
    per_fault = STEPS_PER_FAULT[options.place] + int(lasts_s * FASTEST)
    steps = options.steps or per_fault * each
    corpus = options.corpus.resolve()
    settings = [f"train.steps={steps}", f"data.path={corpus}", *options.overrides]
    reports, failures = [], []
    with (
        _locally(settings, without)
        if options.place == "local"
        else _on_machines(settings, corpus) as launch
    ):
        alone = launch("undisturbed", 0, -1)
        reference, world = alone.undisturbed(), alone.run.config.parallel.world_size
        print(f"undisturbed digest {reference}", flush=True)
        for number in range(num_runs):
            seed = options.seed + number
            print(f"run {number}, seed {seed}", flush=True)
            spared = -1 if options.only else witness(seed, world)
            how: dict[str, Any] = {"world": world, "only": options.only, "without": without}
            strikes = plan(options.place, seed, each, **how)
            reports.append(drilled(launch(f"drill-{number}", seed, spared), strikes))
            failures += [f"run {number}: {line}" for line in judge(reports[-1], reference)]
    return reference, reports, failures


@contextmanager
def _locally(settings: Sequence[str], without: dict[str, str]) -> Iterator[Launch]:
    own = {"own_clock": "clock_step" not in without, "own_disk": "full_disk" not in without}
    with Rig(**own) as rig:
        yield lambda name, *how: LocalRun(rig.start(name, *SMALL, *settings), *how)


@contextmanager
def _on_machines(settings: Sequence[str], corpus: Path) -> Iterator[Launch]:
    with _machines(corpus) as machines:

        def launch(name: str, seed: int, _spared: int) -> DrilledRun:
            machines.run(bed.CONFIG, name, *bed.SETTINGS, *settings)
            return bed.MachinesRun(machines, name, seed)

        yield launch


def _on_slurm(options: argparse.Namespace) -> int:
    corpus, rows = options.corpus.resolve(), {}
    with _machines(corpus, way="slurm") as machines:
        cases = slurm.Cases(machines, options.seed, f"data.path={corpus}", *options.overrides)
        for name, found in cases.results(options.only):
            rows[name] = found
            print(json.dumps({name: found}), flush=True)
    failures = [f"{name}: {line}" for name, found in rows.items() for line in slurm.judge(found)]
    failures += [] if rows else [f"no case of Slurm is named {options.only!r}"]
    condition = f"each fault {slurm.SETTLE_S:g} s or more after the spare has joined"
    return finish(options.out, failures, condition=condition, cases=rows)


@contextmanager
def _machines(corpus: Path, **how: Any) -> Iterator[Machines]:
    visible = [corpus, bed.CONFIG.parent]
    with (
        tempfile.TemporaryDirectory(prefix="hw-machines-") as folder,
        Machines(Path(folder), count=5, visible=visible, **how) as machines,
    ):
        yield machines


if __name__ == "__main__":
    sys.exit(main())
