"""Slows a rank of a run and counts the steps until it is shown: ``python -m benchmarks.slow``.

One run of two pipeline stages by two replicas. Repeatedly ``headway inject`` lets one rank
run a tenth of the time, until both ``headway watch`` and ``headway status`` name it, or a limit of
steps has passed; then the fault ends, and that has to be said too.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.common.polling import wait_until
from headway.console.run import Run
from headway.health.journal import read_verdicts
from headway.testkit.journal import query

from benchmarks.drills.rig import Rig
from benchmarks.faults import healthy
from benchmarks.hardware import hardware

CONFIG = "examples/tiny.toml"
SHAPE = (
    "parallel.pp=2", "parallel.dp=2", "launch.nodes=2", "launch.ranks_per_node=2",
    "launch.spares=0", "launch.standbys=0", "train.steps=1000000", "ckpt.durable_every=50",
    "model.vocab_size=512",
)  # fmt: skip
LIMIT_STEPS = 20
GIVE_UP_STEPS = 40
LIMIT_S = 900.0
HOLD_S = 3600
"""The fault lasts until it is ended."""


@dataclass(frozen=True)
class _Headway:
    """The command line, as a user has it."""

    run: Run

    def start(self, *words: str, out: int) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "headway.console", *words]
        argv += ["--runs-dir", str(self.run.path.parent)]
        return subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, text=True)

    def __call__(self, *words: str) -> str:
        started = self.start(*words, out=subprocess.PIPE)
        output, _ = started.communicate(timeout=120)
        assert started.returncode == 0, output
        return output


class _Watch:
    """A ``headway watch``, whose lines are collected."""

    def __init__(self, headway: _Headway) -> None:
        name = headway.run.name
        self._process = headway.start("watch", name, "--every", "1", out=subprocess.PIPE)
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(self._process.stdout)

    def count(self, text: str) -> int:
        return sum(text in line for line in self.lines)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def _step(run: Run) -> int:
    return int(query(run, "SELECT MAX(step) FROM metrics")[0][0] or 0)


def slow_down(rig: Rig, run: Run, watch: _Watch, rank: int) -> dict[str, Any]:
    """One fault and its end; steps after which each place has named the rank, -1 if it has not."""
    headway = _Headway(run)
    said, over = f"rank {rank} computes", f"rank {rank} is as fast"
    before, ended = watch.count(said), watch.count(over)
    assert said not in headway("status", run.name), "the last fault is not over"
    headway("inject", run.name, "slow_disk", "--rank", str(rank), "--for", str(HOLD_S), "--yes")
    begun, begun_s = _step(run), time.monotonic()
    row: dict[str, Any] = {"rank": rank, "watch": -1, "status": -1, "sentence": ""}
    while -1 in (row["watch"], row["status"]) and _step(run) - begun < GIVE_UP_STEPS:
        if row["watch"] < 0 and watch.count(said) > before:
            row["watch"] = _step(run) - begun
        if row["status"] < 0:
            lines = [line for line in headway("status", run.name).splitlines() if said in line]
            if lines:
                row["status"], row["sentence"] = _step(run) - begun, lines[0]
        time.sleep(0.2)
        assert time.monotonic() - begun_s < LIMIT_S, "the run makes no steps"
    row["seconds"] = round(time.monotonic() - begun_s, 1)
    for holder in rig.holders():
        holder.kill(signal.SIGTERM)
    healed = _step(run)
    if row["watch"] >= 0:
        is_over = wait_until(lambda: watch.count(over) > ended, LIMIT_S, every_s=0.2)
        row["end"] = _step(run) - healed if is_over else -1
    wait_until(lambda: _step(run) - healed > LIMIT_STEPS, LIMIT_S, every_s=0.2)
    return row


def _others(run: Run, rank: int) -> list[str]:
    """What was said, faults included, of others than the slowed rank."""
    found = [one for one in read_verdicts(run.folder.control / "verdicts.jsonl") if one.is_open]
    return sorted({f"{one.kind} of rank {one.rank}" for one in found if one.rank != rank})


def _is_right(row: dict[str, Any]) -> bool:
    is_named = all(0 <= row[place] <= LIMIT_STEPS for place in ("watch", "status"))
    return is_named and row.get("end", -1) >= 0


def main(argv: Sequence[str] | None = None) -> int:
    """Slow ranks; returns 0 if each was named in both places within the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--quiet-minutes", type=float, default=0.0, help="before, without a fault")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with Rig() as rig:
        run = rig.start("slow", CONFIG, [*SHAPE, f"data.path={rig.data}", *options.overrides])
        watch = _Watch(_Headway(run))
        try:
            healthy(run, beyond_step=LIMIT_STEPS, limit_s=LIMIT_S)
            time.sleep(60 * options.quiet_minutes)
            false_alarms = _others(run, -2)
            print(f"quiet until step {_step(run)}: {len(false_alarms)} verdicts", flush=True)
            for _ in range(options.times):
                rows.append(slow_down(rig, run, watch, options.rank))
                print(f"  {rows[-1]}", flush=True)
            false_alarms += _others(run, options.rank)
        finally:
            watch.close()
    within = sum(map(_is_right, rows))
    print(f"{within} of {len(rows)} named within {LIMIT_STEPS} steps, {len(false_alarms)} false")
    if options.out:
        result = {"hardware": hardware(), "date": time.strftime("%Y-%m-%d"), "rows": rows}
        result["false_alarms"] = false_alarms
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if within == len(rows) and not false_alarms else 1


if __name__ == "__main__":
    sys.exit(main())
