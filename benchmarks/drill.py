"""Breaks runs on purpose and measures how they come back: ``python -m benchmarks.drill``.

Each run gets a seeded plan of faults, struck one after the other, each only after the run is healthy again. At the end
the digest of the final parameters is compared with the undisturbed run's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import xxhash
from headway.ckpt_store.client import newest, read_shard
from headway.common.node.flight import FlightReader
from headway.common.node.run_dir import NodePaths
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.messages.driver import Status
from headway.console.analysis.events import load_events, redone_steps
from headway.console.cluster import Cluster
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder

from benchmarks.faults import Fault, Striker, healthy, plan, witness
from benchmarks.resources import Watch, grown

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
)
CONFIG = "examples/tiny.toml"


def final_digest(run: Run) -> str:
    """xxh3 of every rank's master parameters in the last checkpoint, in rank order."""
    info = newest(run.folder.checkpoints)
    assert info is not None, f"{run.name} left no checkpoint"
    assert info.step == run.config.train.steps, f"{run.name} ends at checkpoint {info.step}"
    digest = xxhash.xxh3_128()
    for rank in range(run.config.parallel.world_size):
        data, _ = read_shard(info, rank)
        digest.update(data)
    return digest.hexdigest()


def recovery_times(run: Run, fault: Fault, until_s: float) -> dict[str, float]:
    """Seconds from the strike to: the fence (detect), the new generation (decide), all ranks' first new step."""
    rows = run.query(
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
    """One fault, from healthy to healthy."""
    before = healthy(run)
    striker.strike(fault)
    # What is told may be older than the strike: healthy is who has a new process for each that fell, and steps go on.
    after = healthy(run, beyond_step=before.step + 2, fallen=fault.fallen | fault.victims)
    until = time.monotonic()
    pids = lambda status: {r.rank: r.pid for r in status.ranks}  # noqa: E731
    kept = {rank for rank, pid in pids(before).items() if pid not in fault.victims}
    row = {
        "fault": str(fault),
        "target": fault.target,
        "failpoint": fault.failpoint,
        "generations": list(range(before.generation + 1, after.generation + 1)),
        "survivors_with_new_pid": sorted(
            rank for rank in kept if pids(after)[rank] != pids(before)[rank]
        ),
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
    cluster: Cluster, name: str, overrides: Sequence[str], faults: list[Fault], seed: int
) -> dict[str, Any]:
    """Launch, strike every fault, wait for the end, and report."""
    run = cluster.launch(CONFIG, overrides, name=name)
    striker, watch, rows = Striker(run, seed), Watch(), []
    healthy(run, beyond_step=2)
    for fault in faults:
        watch.take(processes(run, healthy(run)))
        rows.append(strike_and_recover(run, striker, fault))
    watch.take(processes(run, healthy(run)))
    durations = [row[0] for row in run.query("SELECT duration_s FROM metrics")]
    redone = redone_steps(load_events(run.folder.path))
    outcome = run.wait(timeout_s=900)
    return {
        "run": name,
        "outcome": outcome,
        "faults": rows,
        "redone_steps": {str(row["generation"]): row["num_steps"] for row in redone.to_dicts()},
        "digest": final_digest(run),
        "witness": f"rank {witness(seed, run.config.parallel.world_size)}",
        "resources": watch.samples,
        "step_p50_s": statistics.median(durations),
        "step_max_s": max(durations),
    }


def undisturbed_run(cluster: Cluster, name: str, overrides: Sequence[str]) -> str:
    """The control: the same configuration without faults."""
    run = cluster.launch(CONFIG, overrides, name=name)
    outcome = run.wait(timeout_s=900)
    assert outcome == "finished", outcome
    return final_digest(run)


def judge(report: dict[str, Any], reference: str) -> list[str]:
    """What is wrong with a disturbed run; empty when all promises hold."""
    wrong = []
    if report["outcome"] != "finished":
        wrong.append(f"outcome {report['outcome']}")
    if report["digest"] != reference:
        wrong.append(f"digest {report['digest']} is not the undisturbed {reference}")
    wrong += [
        f"{row['fault']}: ranks {row['survivors_with_new_pid']} changed pid"
        for row in report["faults"]
        if row["survivors_with_new_pid"]
    ]
    for row in report["faults"]:
        again = [
            report["redone_steps"].get(str(generation), 0) for generation in row["generations"]
        ]
        # a lost node's go back to a checkpoint
        if row["target"] != "node" and any(count > 1 for count in again):
            wrong.append(f"{row['fault']}: completed steps done again {again}")
    if len(report["resources"][report["witness"]]) <= len(report["faults"]):
        wrong.append(f"{report['witness']} was not watched through all faults")
    wrong += grown(report["resources"])
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Run the drill; returns 0 when every promise held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="headway-drill-"))
    overrides = [
        *SMALL,
        f"train.steps={options.steps}",
        f"data.path={Path('data/stdlib').resolve()}",
        *options.overrides,
    ]
    cluster = Cluster(folder)
    reference = undisturbed_run(cluster, "undisturbed", overrides)
    print(f"undisturbed digest {reference}", flush=True)
    reports, failures = [], []
    for number in range(options.runs):
        seed = options.seed + number
        print(f"run {number}, seed {seed}", flush=True)
        report = disturbed_run(
            cluster, f"drill-{number}", overrides, plan(seed, options.faults, 4), seed
        )
        failures += [f"run {number}: {line}" for line in judge(report, reference)]
        reports.append(report)
    result = {
        "command": "python -m benchmarks.drill " + " ".join(argv or sys.argv[1:]),
        "reference": reference,
        "hardware": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "runs": reports,
        "failures": failures,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    for line in failures:
        print("FAILED " + line)
    if not failures:
        shutil.rmtree(folder)
        print(f"all {sum(len(r['faults']) for r in reports)} faults recovered")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
