"""D13, D14: checkpoints that are all damaged, and a checkpoints folder that is another one."""

from __future__ import annotations

import random
import time
from pathlib import Path

from headway.ckpt_store.client import newest
from headway.console.run import TERMINAL_OUTCOMES
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.local import LocalEngine

from benchmarks.drills.judge import Report
from benchmarks.drills.place import events_of, last_generation
from benchmarks.drills.rig import Rig

KEEP = "ckpt.keep=2"


def d13(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """Stop; flip a byte in a rank's part of every checkpoint; start; repair it; start again."""
    run, rank = rig.launch("d13", KEEP), rng.randrange(2)
    rig.healthy(run, 20 + rng.randrange(40))
    rig.finish(run)
    outcome, detail = "failed", "every checkpoint is damaged"
    files = sorted(run.folder.checkpoints.glob(f"step-*/rank-{rank}.safetensors"))
    if faulty:
        _flip(files)
        run = rig.launch("d13", KEEP)
        rig.wait(lambda: run.outcome in TERMINAL_OUTCOMES, 60.0)
        outcome, detail = run.outcome, run.fact("detail")
        rig.finish(run)
    kept = all(file.exists() for file in files)
    if faulty and kept:
        _flip(files)
    run = rig.launch("d13", KEEP)
    recovered = rig.steps_on(run, 60.0, lambda _: True)
    last = last_generation(run)
    return {
        "outcome": outcome,
        "detail": detail,
        "kept": kept,
        "recovered_s": recovered,
        "source": last.get("source"),
        "left": rig.finish(run),
    }


def d14(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """An empty folder where the checkpoints were; a node is lost; then the folder is back."""
    run = rig.launch("d14", KEEP)
    before = rig.healthy(run, 20 + rng.randrange(40))
    rig.wait(lambda: newest(run.folder.checkpoints) is not None, 30.0)
    begun, folder = time.monotonic(), run.folder.checkpoints
    away, other = folder.with_name("away"), folder.with_name("other")
    if faulty:
        folder.rename(away)
        folder.mkdir()
    lost = next(row.node for row in before.ranks if row.node != rig.home(before))
    LocalEngine(ClusterFolder(run.cluster_folder)).lose_node(lost)
    time.sleep(rng.uniform(8.0, 15.0))
    if faulty:
        folder.rename(other)
        away.rename(folder)
    recovered = rig.steps_on(run, 45.0, lambda s: s.generation > before.generation)
    events = [row for row in events_of(run, begun) if row["name"] in ("generation", "started_over")]
    return {
        "recovered_s": recovered,
        "source": last_generation(run).get("source"),
        "events": events,
        "left": rig.finish(run),
    }


def _flip(files: list[Path]) -> None:
    """Turn the byte in the middle of each file round; a second time repairs it."""
    for file in files:
        with file.open("r+b") as opened:
            opened.seek(file.stat().st_size // 2)
            (byte,) = opened.read(1)
            opened.seek(-1, 1)
            opened.write(bytes([byte ^ 0xFF]))
