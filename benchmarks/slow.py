"""Slows a rank of a run and counts the steps until it is shown: ``python -m benchmarks.slow``.

One run of two pipeline stages by two replicas. Repeatedly ``headway inject`` lets one rank
run a tenth of the time, until both ``headway watch`` and ``headway status`` name it, or a limit of
steps has passed; then the fault ends, and that has to be said too.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.common.polling import wait_until
from headway.console.run import Run
from headway.health.journal import read_verdicts
from headway.testkit.journal import query

from benchmarks.drill.look import healthy
from benchmarks.drill.rig import Rig
from benchmarks.report import finish, parser

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


def _command(run: Run, *words: str) -> list[str]:
    """The command line, as a user has it."""
    runs = ["--runs-dir", str(run.path.parent)]
    return [sys.executable, "-m", "headway.console", *words, *runs]


def _headway(run: Run, *words: str) -> str:
    out, err = subprocess.PIPE, subprocess.STDOUT
    words_of = _command(run, *words)
    done = subprocess.run(words_of, stdout=out, stderr=err, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


class _Watch:
    """A ``headway watch``, whose output is kept in a file."""

    def __init__(self, run: Run, file: Path) -> None:
        self._file, words = file, _command(run, "watch", run.name, "--every", "1")
        with file.open("w") as out:
            self._process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)

    def count(self, text: str) -> int:
        return self._file.read_text().count(text)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def _step(run: Run) -> int:
    return int(query(run, "SELECT MAX(step) FROM metrics")[0][0] or 0)


def slow_down(rig: Rig, run: Run, watch: _Watch, rank: int) -> dict[str, Any]:
    """One fault and its end; steps after which each place has named the rank, -1 if it has not."""
    said, over = f"rank {rank} computes", f"rank {rank} is as fast"
    before, ended = watch.count(said), watch.count(over)
    assert said not in _headway(run, "status", run.name), "the last fault is not over"
    _headway(
        run, "inject", run.name, "slow_disk", "--rank", str(rank), "--for", str(HOLD_S), "--yes"
    )
    begun, begun_s = _step(run), time.monotonic()
    row: dict[str, Any] = {"rank": rank, "watch": -1, "status": -1, "sentence": ""}
    while -1 in (row["watch"], row["status"]) and _step(run) - begun < GIVE_UP_STEPS:
        if row["watch"] < 0 and watch.count(said) > before:
            row["watch"] = _step(run) - begun
        if row["status"] < 0:
            lines = [
                line for line in _headway(run, "status", run.name).splitlines() if said in line
            ]
            if lines:
                row["status"], row["sentence"] = _step(run) - begun, lines[0]
        time.sleep(0.2)
        assert time.monotonic() - begun_s < LIMIT_S, "the run makes no steps"
    row["seconds"] = round(time.monotonic() - begun_s, 1)
    rig.release()
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
    options = parser(__doc__)
    options.add_argument("--times", type=int, default=10)
    options.add_argument("--rank", type=int, default=1)
    options.add_argument("--quiet-minutes", type=float, default=0.0, help="before, without a fault")
    options.add_argument("--set", action="append", default=[], dest="overrides")
    given = options.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with Rig() as rig:
        run = rig.start("slow", *SHAPE, *given.overrides)
        watch = _Watch(run, rig.folder / "watch")
        try:
            healthy(run, LIMIT_STEPS, limit_s=LIMIT_S)
            time.sleep(60 * given.quiet_minutes)
            false_alarms = _others(run, -2)
            print(f"quiet until step {_step(run)}: {len(false_alarms)} verdicts", flush=True)
            for _ in range(given.times):
                rows.append(slow_down(rig, run, watch, given.rank))
                print(f"  {rows[-1]}", flush=True)
            false_alarms += _others(run, given.rank)
        finally:
            watch.close()
    within = sum(map(_is_right, rows))
    print(f"{within} of {len(rows)} named within {LIMIT_STEPS} steps, {len(false_alarms)} false")
    failures = [f"not named in time: {row}" for row in rows if not _is_right(row)]
    failures += [f"false alarm: {one}" for one in false_alarms]
    return finish(given.out, failures, rows=rows, false_alarms=false_alarms)


if __name__ == "__main__":
    sys.exit(main())
