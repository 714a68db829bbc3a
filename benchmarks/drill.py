"""Breaks runs on purpose and judges how they come back: ``python -m benchmarks.drill``.

Each run gets a seeded plan of faults, more than 40 % of them not signals, struck one after the
other, each only after the run is healthy again. At the end nothing may be degraded, and the digest
of the final parameters is compared with the undisturbed run's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from headway.common.errors import HeadwayError
from headway.common.node.flight import FlightReader
from headway.common.node.run_dir import NodePaths
from headway.common.plan.schedule.actions import Kind
from headway.common.polling import wait_until
from headway.common.wire.messages.driver import Status
from headway.console.analysis.events import load_events, redone_steps
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.testkit.journal import query

from benchmarks import aftermath
from benchmarks.digest import final_digest
from benchmarks.drill_judge import judge
from benchmarks.drills import planned
from benchmarks.drills.means import cannot
from benchmarks.drills.rig import Rig
from benchmarks.faults import Fault, healthy, plan, witness
from benchmarks.hardware import hardware
from benchmarks.resources import Watch
from benchmarks.striker import LOST_LIMIT_S, Striker, nodes_are_well

SMALL = (
    "model.hidden=128",
    "model.heads=4",
    "model.seq_len=128",
    "model.vocab_size=8192",
    "train.dtype=fp32",
    "train.eval_batches=1",
    "train.eval_every=0",
    "train.sample_tokens=0",
    "ckpt.durable_every=5",
    "recovery.max_node_failures=1000",  # an hour of faults is not to move ranks to the spare
)
CONFIG = "examples/tiny.toml"
STEPS_PER_FAULT = 75
"""A run must not end before its last fault;
at 0.33 s a step these are 25 s, more than most faults take."""


def recovery_times(run: Run, fault: Fault, until_s: float) -> dict[str, float]:
    """Seconds from the strike to: the fence (detect), the new generation (decide),
    all ranks' first new step."""
    rows = query(
        run,
        "SELECT name, monotonic_s FROM events WHERE monotonic_s BETWEEN ? AND ? ORDER BY id",
        (fault.struck_at_s, until_s),
    )
    times: dict[str, float] = {}
    for name, at in rows:
        key = {
            "worker_lost": "detect_s",
            "fence": "detect_s",
            "generation": "decide_s",
            "stepping": "first_step_s",
        }.get(name)
        if key == "detect_s":
            times.setdefault(key, at - fault.struck_at_s)
        elif key is not None:
            times[key] = at - fault.struck_at_s
    restored = [r for path in _flights(run) for r in _restores(path, fault.struck_at_s)]
    if restored:
        times["restore_s"] = max(restored) - fault.struck_at_s
    return times


def _flights(run: Run) -> list[Path]:
    return [
        path for node in range(8) for path in NodePaths(run.folder.run_id, node).segments("flight")
    ]


def _restores(path: Path, since_s: float) -> list[float]:
    reader = FlightReader(path)
    records = reader.snapshot()
    reader.close()
    ends = records[(records["kind"] == int(Kind.RESTORE)) & (records["end_ns"] > since_s * 1e9)][
        "end_ns"
    ]
    return [int(end) / 1e9 for end in ends]


def strike_and_recover(run: Run, striker: Striker, fault: Fault) -> dict[str, Any]:
    """One fault, from healthy to healthy;
    of one that lasts, until it is over and lost nodes are back."""
    before = healthy(run)
    try:
        striker.strike(fault)
        # What is reported may be older than the strike: healthy is who has a new process for each
        # that fell, and steps continue.
        after = healthy(run, beyond_step=before.step + 2, fallen=fault.fallen)
        until = time.monotonic()
        striker.undo(fault)
    finally:
        striker.release()
    wait_until(lambda: nodes_are_well(run), LOST_LIMIT_S, every_s=0.2)
    after = healthy(run, beyond_step=after.step)
    old, new = ({r.rank: r.pid for r in status.ranks} for status in (before, after))
    kept = {rank for rank, pid in old.items() if pid not in fault.victims}
    row = {
        "fault": str(fault),
        "kind": fault.kind,
        "target": fault.target,
        "failpoint": fault.failpoint,
        "goes_back": fault.goes_back,
        "spares_the_generation": fault.spares_the_generation,
        "generations": list(range(before.generation + 1, after.generation + 1)),
        "survivors_with_new_pid": sorted(rank for rank in kept if new[rank] != old[rank]),
        "nodes": {str(node): status for node, status in after.nodes.items()},
        "healthy_s": until - fault.struck_at_s,
        **recovery_times(run, fault, until),
    }
    times = [
        f"{key.removesuffix('_s')} {value:.2f}" for key, value in row.items() if key.endswith("_s")
    ]
    print(f"  {fault}: {', '.join(times)} s", flush=True)
    return row


def processes(run: Run, status: Status) -> dict[str, int]:
    """Name -> pid of every worker, service and executor of the nodes in use."""
    folder = ClusterFolder(run.cluster_folder)
    found = {f"rank {r.rank}": r.pid for r in status.ranks}
    for node in {r.node for r in status.ranks}:
        found |= {f"{name} {node}": pid for name, pid in status.services.get(node, {}).items()}
        if address := folder.address(node):
            found[f"executor {node}"] = address.process.pid
    return found


def disturbed_run(
    rig: Rig, name: str, overrides: Sequence[str], faults: list[Fault], seed: int
) -> dict[str, Any]:
    """Launch, strike every fault, look at what is left, wait for the end, and report."""
    run = rig.start(name, CONFIG, overrides)
    striker, watch, rows, stopped_by = Striker(run, seed), Watch(), [], ""
    launch = run.config.launch
    config = {"nodes": launch.nodes + launch.spares, "standbys": launch.standbys}
    try:
        healthy(run, beyond_step=2)
        for fault in faults:
            watch.take(processes(run, healthy(run)))
            rows.append(strike_and_recover(run, striker, fault))
        watch.take(processes(run, healthy(run)))
    except (HeadwayError, AssertionError) as error:
        at = faults[len(rows)] if len(rows) < len(faults) else "the end"
        stopped_by = f"{at}: {error}"[:600]
    seen, degraded = aftermath.settle(run, config, faults[: len(rows)])
    durations = [row[0] for row in query(run, "SELECT duration_s FROM metrics")]
    repeated = redone_steps(load_events(run.folder.path))
    outcome = "unfinished"
    if not stopped_by:
        with contextlib.suppress(HeadwayError):
            outcome = run.wait(timeout_s=1800)
    return {
        "run": name,
        "outcome": outcome,
        "stopped_by": stopped_by,
        "faults": rows,
        "num_faults": len(faults),
        "aftermath": seen,
        "degraded": degraded,
        "missing_steps": aftermath.missing_steps(run),
        "redone_steps": {str(row["generation"]): row["num_steps"] for row in repeated.to_dicts()},
        "digest": final_digest(run) if outcome == "finished" else "",
        "witness": f"rank {witness(seed, run.config.parallel.world_size)}",
        "resources": watch.samples,
        "step_p50_s": statistics.median(durations or [0.0]),
        "step_max_s": max(durations, default=0.0),
    }


def undisturbed_run(rig: Rig, name: str, overrides: Sequence[str]) -> str:
    """The control: the same configuration without faults."""
    run = rig.start(name, CONFIG, overrides)
    outcome = run.wait(timeout_s=1800)
    assert outcome == "finished", outcome
    return final_digest(run)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the drill; returns 0 when every promise held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", choices=["faults", "planned"], default="faults")
    parser.add_argument("--times", type=int, default=10, help="announced ends, with planned")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--faults", type=int, default=60, help="of all runs together")
    parser.add_argument(
        "--steps", type=int, default=0, help="of each run; 0: enough for its faults"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args(argv)
    if options.kinds == "planned":
        return _finish(options, planned.report(options.times, options.seed))
    result = _struck(options)
    if code := _finish(options, result):
        return code
    print(f"all {sum(len(r['faults']) for r in result['runs'])} faults recovered")
    return 0


def _struck(options: argparse.Namespace) -> dict[str, Any]:
    """Strike the runs; ``failures`` names what did not hold."""
    without = cannot()
    for kind, reason in without.items():
        print(f"without {kind}: {reason}", flush=True)
    each = max(2, options.faults // options.runs)
    overrides = [
        *SMALL,
        f"train.steps={options.steps or STEPS_PER_FAULT * each}",
        f"data.path={Path('data/stdlib').resolve()}",
        *options.overrides,
    ]
    reports, failures = [], []
    own = {"own_clock": "clock_step" not in without, "own_disk": "full_disk" not in without}
    with Rig(**own) as rig:
        reference = undisturbed_run(rig, "undisturbed", overrides)
        print(f"undisturbed digest {reference}", flush=True)
        for number in range(options.runs):
            seed = options.seed + number
            print(f"run {number}, seed {seed}", flush=True)
            faults = plan(seed, each, 4, without=without)
            report = disturbed_run(rig, f"drill-{number}", overrides, faults, seed)
            failures += [f"run {number}: {line}" for line in judge(report, reference)]
            reports.append(report)
    return {"reference": reference, "runs": reports, "failures": failures}


def _finish(options: argparse.Namespace, report: dict[str, Any]) -> int:
    """Write the report, and what did not hold; returns the exit code."""
    failures: list[str] = report["failures"]
    result = {
        "command": "python -m benchmarks.drill " + " ".join(sys.argv[1:]),
        "hardware": hardware(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        **report,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    for line in failures:
        print("FAILED " + line)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
