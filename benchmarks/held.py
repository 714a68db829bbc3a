"""Is the right rank ended when one hangs in a forward? ``python -m benchmarks.held --tp 2``.

One live run; repeatedly the main thread of a random rank is held between two layers of a
forward, while its process and its other threads stay alive. After each the held rank must have been
replaced, no other rank named or replaced, no node lost, and all ranks must step again.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from headway.common.errors import DeadlineError, HeadwayError
from headway.common.node.failpoints import arm, disarm, fired
from headway.common.node.run_dir import NodePaths
from headway.common.polling import wait_until
from headway.common.wire.messages.driver import Status
from headway.console.run import Run
from headway.health.client import Verdict
from headway.health.journal import read_verdicts
from headway.testkit.journal import query

from benchmarks.drills.rig import Rig
from benchmarks.faults import healthy
from benchmarks.hardware import hardware

POINT = "worker.in_layer"
HELD_FOR_S = 600
FIRE_LIMIT_S = 60.0
STEPS_BETWEEN = 8
"""Completed steps before the next one: enough for a median of step times."""


@dataclass
class Held:
    """One rank that was held, and what came of it; times in seconds after it was held."""

    rank: int
    named_s: float = -1.0
    ended_s: float = -1.0
    stepping_s: float = -1.0
    named: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def hold(run: Run, rank: int, number: int, known: set[tuple[str, int]]) -> Held:
    """Hold the rank and wait until the run is healthy again; ``known`` are the revisions of
    verdicts that were judged before, and after it those of this one."""
    row, failpoints = Held(rank), NodePaths(run.folder.run_id, 0).failpoints
    before = healthy(run, beyond_step=healthy(run).step + STEPS_BETWEEN)
    key = arm(failpoints, POINT, f"sleep:{HELD_FOR_S}", {"rank": rank}, f"held-{number}")
    if not wait_until(lambda: key in fired(failpoints), FIRE_LIMIT_S):
        raise DeadlineError(f"rank {rank} did not reach {POINT}")
    held_at_s, held_unix_s = time.monotonic(), time.time()
    pids = {one.rank: one.pid for one in before.ranks}
    after = healthy(run, beyond_step=before.step + 2, fallen={pids[rank]})
    disarm(failpoints, key)
    news = [one for one in _verdicts(run) if (one.id, one.revision) not in known]
    known |= {(one.id, one.revision) for one in news}
    row.named = [f"{one.kind} {one.rank}" for one in news if one.is_open and not one.taken]
    row.named_s = min((v.unix_s - held_unix_s for v in news if v.rank == rank), default=-1.0)
    row.ended_s = _since(run, "fence", held_at_s)
    row.stepping_s = _since(run, "stepping", held_at_s)
    row.wrong = list(_faults(row, news, before, after))
    return row


def _faults(row: Held, news: Sequence[Verdict], before: Status, after: Status) -> Sequence[str]:
    old, new = ({one.rank: one.pid for one in status.ranks} for status in (before, after))
    others = sorted(rank for rank in old if rank != row.rank and old[rank] != new[rank])
    named = sorted({one.rank for one in _accusing(news) if one.rank not in (row.rank, -1)})
    wrong = [f"rank {rank} has another process" for rank in others]
    wrong += [f"rank {rank} was named" for rank in named]
    wrong += [f"{one.kind} of node {one.node}" for one in news if one.kind == "node_silent"]
    if not any(one.kind == "silence" and one.rank == row.rank for one in news):
        wrong.append(f"rank {row.rank} was not named")
    if after.nodes != before.nodes:
        wrong.append(f"nodes {before.nodes} became {after.nodes}")
    if after.generation != before.generation + 1:
        wrong.append(f"generation {before.generation} became {after.generation}")
    return wrong


def _accusing(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Those that name somebody, even if nothing follows: not a victim's log line of its loss."""
    return [one for one in verdicts if one.kind not in ("peer_lost", "collective_timeout")]


def _verdicts(run: Run) -> list[Verdict]:
    return read_verdicts(run.folder.path / "verdicts.jsonl")


def _since(run: Run, event: str, at_s: float) -> float:
    rows = query(
        run, "SELECT MIN(monotonic_s) FROM events WHERE name = ? AND monotonic_s > ?", (event, at_s)
    )
    return float(rows[0][0]) - at_s if rows and rows[0][0] is not None else -1.0


def layout(tp: int, pp: int) -> list[str]:
    """One node for each stage, without a spare: nothing but the held rank may be replaced."""
    return [
        f"parallel.tp={tp}", f"parallel.pp={pp}", f"launch.nodes={pp}",
        f"launch.ranks_per_node={tp}", "launch.spares=0", "train.eval_batches=1",
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns 0 when every held rank was the one that was ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    chance, stopped_by = random.Random(options.seed), ""
    rows: list[Held] = []
    known: set[tuple[str, int]] = set()
    with Rig() as rig:
        run = rig.launch("held", *layout(options.tp, options.pp), *options.overrides)
        try:
            for number in range(options.times):
                row = hold(run, chance.randrange(options.tp * options.pp), number, known)
                rows.append(row)
                print(f"{number}: {row}", flush=True)
            healthy(run, beyond_step=healthy(run).step + STEPS_BETWEEN)
            late = [one for one in _verdicts(run) if (one.id, one.revision) not in known]
            named = sorted({one.rank for one in _accusing(late) if one.is_open})
            rows[-1].wrong += [f"rank {rank} was named afterwards" for rank in named]
        except HeadwayError as error:
            stopped_by = str(error)[:600]
        finally:
            rig.finish(run)
    good = [row for row in rows if not row.wrong]
    print(f"{len(good)} of {options.times} right {stopped_by}")
    if rows:
        for name in ("named_s", "ended_s", "stepping_s"):
            values = [getattr(row, name) for row in rows]
            print(f"{name}: median {statistics.median(values):.1f}, longest {max(values):.1f}")
    if options.out:
        facts = {
            "command": "python -m benchmarks.held " + " ".join(argv or sys.argv[1:]),
            "hardware": hardware(),
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
            "held": [asdict(row) for row in rows],
            "stopped_by": stopped_by,
        }
        options.out.write_text(json.dumps(facts, indent=1) + "\n")
    return 0 if len(good) == options.times else 1


if __name__ == "__main__":
    sys.exit(main())
