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

import numpy as np
import torch
import xxhash
from headway.ckpt_store.client import newest, read_shard
from headway.common.node.flight import FlightReader
from headway.common.node.run_dir import NodePaths
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.messages.driver import Status
from headway.console.cluster import Cluster
from headway.console.run import Run

from benchmarks.faults import Fault, Striker, healthy, plan

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


def completed(run: Run) -> dict[int, dict[int, set[int]]]:
    """Generation -> rank -> steps that this rank completed, from saved windows and live rings."""
    found: dict[int, dict[int, set[int]]] = {}

    def take(records: Any, rank: int) -> None:
        steps = records[(records["kind"] == int(Kind.STEP)) & (records["end_ns"] > 0)]
        for generation, step in zip(steps["generation"].tolist(), steps["step"].tolist(), strict=True):
            found.setdefault(generation, {}).setdefault(rank, set()).add(step)

    for file in run.folder.events.glob("*.npy"):
        take(np.load(file, allow_pickle=False), int(file.name.split("-rank")[1].split("-")[0]))
    for node in range(8):
        for path in NodePaths(run.folder.run_id, node).segments("flight"):
            reader = FlightReader(path)
            take(reader.snapshot(), int(path.stem.removeprefix("flight-")))
            reader.close()
    return found


def redone_steps(run: Run) -> list[int]:
    """Per recovery, the completed steps that were done again: steps that every rank had completed before."""
    world = run.config.parallel.world_size
    by_generation = completed(run)
    done: set[int] = set()
    counts = []
    for generation in sorted(by_generation):
        ranks = by_generation[generation]
        whole = set.intersection(*ranks.values()) if len(ranks) == world else set()
        if generation > 0:
            counts.append(len(done & set().union(*ranks.values())))
        done |= whole
    return counts


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
    return [path for node in range(8) for path in NodePaths(run.folder.run_id, node).segments("flight")]


def _restores(path: Path, since_s: float) -> list[float]:
    reader = FlightReader(path)
    records = reader.snapshot()
    reader.close()
    ends = records[(records["kind"] == int(Kind.RESTORE)) & (records["end_ns"] > since_s * 1e9)]["end_ns"]
    return [int(end) / 1e9 for end in ends]


def resources(pids: Sequence[int]) -> dict[int, dict[str, int]]:
    """Open files, threads and resident KiB of processes."""
    found = {}
    for pid in pids:
        proc = Path(f"/proc/{pid}")
        pages = int((proc / "statm").read_text().split()[1])
        found[pid] = {
            "fds": len(os.listdir(proc / "fd")),
            "threads": len(os.listdir(proc / "task")),
            "rss_kib": pages * os.sysconf("SC_PAGESIZE") >> 10,
        }
    return found


def strike_and_recover(run: Run, striker: Striker, fault: Fault) -> dict[str, Any]:
    """One fault, from healthy to healthy."""
    before = healthy(run)
    striker.strike(fault)
    # A service's death changes no generation: then healthy means that it runs again and steps go on.
    after = healthy(run, beyond_step=before.step + 2)
    until = time.monotonic()
    pids = lambda status: {r.rank: r.pid for r in status.ranks}  # noqa: E731
    kept = {rank for rank, pid in pids(before).items() if pid not in fault.victims}
    changed = sorted(rank for rank in kept if pids(after)[rank] != pids(before)[rank])
    row = {
        "fault": str(fault),
        "target": fault.target,
        "failpoint": fault.failpoint,
        "generation": after.generation,
        "survivors_with_new_pid": changed,
        "healthy_s": until - fault.struck_at_s,
        **recovery_times(run, fault, until),
    }
    print(
        "  "
        + "  ".join(
            f"{k}={v:.2f}" if isinstance(v, float) else f"{k}={v}"
            for k, v in row.items()
            if k not in ("target", "failpoint")
        ),
        flush=True,
    )
    return row


def disturbed_run(
    cluster: Cluster, name: str, overrides: Sequence[str], faults: list[Fault], seed: int
) -> dict[str, Any]:
    """Launch, strike every fault, wait for the end, and report."""
    run = cluster.launch(CONFIG, overrides, name=name)
    striker = Striker(run, seed)
    first: Status = healthy(run, beyond_step=2)
    at_start = resources([r.pid for r in first.ranks])
    rows = [strike_and_recover(run, striker, fault) for fault in faults]
    status = healthy(run)
    at_end = resources([r.pid for r in status.ranks])
    durations = [row[0] for row in run.query("SELECT duration_s FROM metrics")]
    redone = redone_steps(run)
    outcome = run.wait(timeout_s=900)
    return {
        "run": name,
        "outcome": outcome,
        "faults": rows,
        "redone_steps": redone,
        "digest": final_digest(run),
        "survivors": {str(pid): {"start": at_start[pid], "end": at_end[pid]} for pid in at_start if pid in at_end},
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
    lost_nodes = sum(row["target"] == "node" for row in report["faults"])
    above = [count for count in report["redone_steps"] if count > 1]
    if len(above) > lost_nodes:  # the loss of a node goes back to a durable checkpoint
        wrong.append(f"completed steps done again per recovery: {report['redone_steps']}")
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
        report = disturbed_run(cluster, f"drill-{number}", overrides, plan(seed, options.faults, 4), seed)
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
