"""Measures how long a run takes to step again after one whole node was frozen beside a ready spare:
``python -m benchmarks.frozen_node --times 10``.

Every process of the node is stopped (SIGSTOP) for ``--seconds``, every second time those of the
driver's node. Ranks of other nodes must keep their processes. The node that wakes up must be a
spare at the end, and no generation may begin for its sake.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.common.errors import HeadwayError
from headway.common.wire.messages.driver import Status
from headway.console.run import Run

from benchmarks.drills.place import events_of, members, status_of
from benchmarks.drills.rig import Rig
from benchmarks.hardware import hardware

LIMIT_S = {False: 12.0, True: 15.0}
"""Longest time from the freeze until every rank steps again; True: the driver's node is frozen."""
BACK_LIMIT_S = 90.0


def freeze(rig: Rig, run: Run, *, is_driver: bool, seconds: float) -> dict[str, Any]:
    """One freeze, from healthy to healthy; returns the times and what is wrong."""
    rig.wait(lambda: _has_ready_spare(rig.healthy(run)), BACK_LIMIT_S)
    before = rig.healthy(run, beyond_step=run.status().step + 2)
    home = rig.home(before)
    used = {row.node for row in before.ranks}
    node = home if is_driver else min(used - {home})
    frozen = [process for process, _, number in members(run) if number == node]
    at = time.monotonic()
    for process in frozen:
        process.kill(signal.SIGSTOP)
    print(f"  node {node} frozen ({len(frozen)} processes), driver on {home}", flush=True)
    try:
        took = rig.steps_on(run, seconds, lambda s: _is_elsewhere(s, node), more=1)
        time.sleep(max(0.0, at + seconds - time.monotonic()))
    finally:
        for process in frozen:
            process.kill(signal.SIGCONT)
    wrong = [] if took <= LIMIT_S[is_driver] else [f"{took:.1f} s until all ranks step again"]
    moved = rig.healthy(run)
    wrong += _lost(before, moved, node)
    back = rig.wait(lambda: _is_well(run, node), BACK_LIMIT_S)
    if (now := rig.healthy(run)).generation != moved.generation:
        wrong.append(f"generation {moved.generation} became {now.generation} after the freeze")
    if back > BACK_LIMIT_S:
        wrong.append(f"node {node} has not come back: {status_of(run)}")
    seen = [
        {"at_s": round(row["at_s"] - at, 2), "name": row["name"], **_short(row["fields"])}
        for row in events_of(run, at)
    ]
    early = [row for row in seen if row["at_s"] <= took + 0.5]
    times = {row["name"]: row["at_s"] for row in reversed(early)}
    if wrong:
        print(f"  {json.dumps(seen)}", flush=True)
    line = ", ".join(f"{name} {s}" for name, s in sorted(times.items(), key=lambda one: one[1]))
    print(f"  steps again after {took:.1f} s; {line}", flush=True)
    return {"node": node, "is_driver": is_driver, "took_s": took, "events": seen, "wrong": wrong}


def _lost(before: Status, after: Status, node: int) -> list[str]:
    old, new = ({row.rank: row.pid for row in status.ranks} for status in (before, after))
    alive = [row.rank for row in before.ranks if row.node != node]
    return [f"rank {rank} has another process" for rank in alive if old[rank] != new[rank]]


def _short(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in ("node", "reason", "step")}


def _has_ready_spare(status: Status) -> bool:
    return "spare" in status.nodes.values() and not status.troubles


def _is_elsewhere(status: Status, node: int) -> bool:
    return all(row.node != node for row in status.ranks)


def _is_well(run: Run, node: int) -> bool:
    with contextlib.suppress(HeadwayError):
        return run.status(timeout_s=1.0).nodes.get(node) in ("spare", "active")
    return False


def main(argv: Sequence[str] | None = None) -> int:
    """Freeze nodes; returns how many of the times something was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--driver-first", action="store_true", help="begin with its node")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args(argv)
    rows = []
    with Rig() as rig:
        run = rig.launch("frozen", *options.overrides)
        for number in range(options.times):
            is_driver = number % 2 == int(not options.driver_first)
            row = freeze(rig, run, is_driver=is_driver, seconds=options.seconds)
            rows.append(row)
            print(f"{'FAIL' if row['wrong'] else 'PASS'} {number}: {row['wrong']}", flush=True)
        rig.finish(run)
    if options.out:
        facts = {"hardware": hardware(), "date": time.strftime("%Y-%m-%d"), "rows": rows}
        options.out.write_text(json.dumps(facts, indent=1) + "\n")
    return sum(bool(row["wrong"]) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
