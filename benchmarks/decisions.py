"""What does a decision of the driver cost at scale? ``python -m benchmarks.decisions``.

A run of ``--ranks`` ranks a node is put in the running phase at several sizes; then beats of one
node after the other are handled, as they come at that size: pulses (the node lives), pulses with a
new step, full beats without a change, full beats with a change; and ticks. Microseconds per event,
the median of all. At 1 Hz a node, ``core_at_1_hz`` is the share of one core that decisions take,
pulses with a step and ticks together. The work of a beat is the same at every size, as
``test_control_scale.py`` counts; what grows are misses of the caches.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from headway.common.decide import Done
from headway.common.wire.messages.driver import NodeBeat, Seals
from headway.common.wire.messages.executor import WorkerBeat
from headway.common.wire.messages.worker import Steer
from headway.controller.decisions.events import (
    BeginGeneration,
    CommandQueued,
    DurableFound,
    Start,
    Tick,
)
from headway.controller.decisions.state import RunState
from headway.trainer.config import RecoveryConfig

from benchmarks.report import finish, parser

LIMIT_US = 50.0
"""Highest cost of a beat that the driver has to bear."""
ROUNDS = 3


def beat(node: int, ranks: int, *, full: bool = True, **how: Any) -> NodeBeat:
    """A beat of a node whose workers hold its ranks, beside one standby."""
    status, generation, step = how.get("status", "running"), how.get("generation", 0), how["step"]
    workers = [
        WorkerBeat(
            worker=f"n{node}w{index}",
            pid=node * 100 + index + 1,
            start_ticks=1,
            status=status if index < ranks else "idle",
            generation=generation if index < ranks else -1,
            rank=node * ranks + index if index < ranks else -1,
            step=step,
            applied=how.get("applied", 0),
        )
        for index in range(ranks + 1)
    ]
    services = {"dataloader": 1, "ckpt_store": 2, "agent": 3, "zygote": 4}
    return NodeBeat(
        node=node,
        pid=node + 1,
        version=how["version"],
        incarnation=1,
        step=step,
        run_id="r",
        workers=tuple(workers) if full else None,
        services=services if full else None,
    )


def running(nodes: int, ranks: int) -> RunState:
    """A run that was gathered, begun and joined by events alone."""
    start = Start(
        run_id="r",
        steps=10**6,
        rank_nodes={r: r // ranks for r in range(nodes * ranks)},
        nodes=nodes,
    )
    state = RunState(start, RecoveryConfig(), now=0.0)
    for node in range(nodes):
        state.handle(beat(node, ranks, version=1, status="idle", generation=-1, step=0), 0.1)
    for node in range(nodes):
        state.handle(Seals(node=node, generation=-1, sealed={}), 0.2)
    actions = state.handle(DurableFound(None), 0.3)
    (begin,) = [action for action in actions if isinstance(action, BeginGeneration)]
    state.handle(Done(begin), 0.4)
    for node in range(nodes):
        state.handle(beat(node, ranks, version=2, step=1), 0.5)
    assert state.phase == "running", state.phase
    return state


def measure(nodes: int, ranks: int, beats: int) -> dict[str, Any]:
    """One row of the table."""
    began_s = time.perf_counter()
    state = running(nodes, ranks)
    made_s = time.perf_counter() - began_s
    order = [index * 7919 % nodes for index in range(beats)]
    rows: dict[str, list[int]] = {}
    now = 1.0
    for number in range(ROUNDS):
        step, version = 2 + number, 3 + number
        same = {"version": version - 1, "step": step}
        changed = {"version": version, "step": step, "applied": number + 1}
        kinds: dict[str, dict[str, Any]] = {
            "pulse": {"full": False, "version": version + 1, "step": step},
            "step": {"full": False, **same},
            "full": same,
            "changed": changed,
            "tick": {},
        }
        for kind, how in kinds.items():
            for node in order:
                event = beat(node, ranks, **how) if how else Tick()  # hot, as one just decoded
                began_ns = time.perf_counter_ns()
                state.handle(event, now)
                rows.setdefault(kind, []).append(time.perf_counter_ns() - began_ns)
        # every node reports, so that none is silent, and all hold the same version
        for node in range(nodes):
            state.handle(beat(node, ranks, **changed), now)
        now += 0.5
    assert state.phase == "running", state.phase
    row: dict[str, Any] = {
        f"{kind}_us": round(statistics.median(ns) / 1e3, 2) for kind, ns in rows.items()
    }
    row |= {"nodes": nodes, "ranks": nodes * ranks, "made_s": round(made_s, 3)}
    row["core_at_1_hz"] = round((nodes * row["step_us"] + 10 * row["tick_us"]) / 1e6, 4)
    return row


def recovery(nodes: int, ranks: int) -> dict[str, float]:
    """Seconds of decisions for a command to all ranks,
    beside those of a whole generation (``made_s``)."""
    state = running(nodes, ranks)
    began_s = time.perf_counter()
    actions = state.handle(CommandQueued(Steer(sequence=1, operation="pause")), 2.0)
    assert len(actions) == nodes * ranks
    return {"steer_s": round(time.perf_counter() - began_s, 4)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns 0 while every beat stays within ``LIMIT_US``."""
    options = parser(__doc__)
    options.add_argument("--nodes", type=int, nargs="+", default=[8, 128, 1536])
    options.add_argument("--ranks", type=int, default=8, help="ranks of one node")
    options.add_argument("--beats", type=int, default=2000, help="of each kind in a round")
    given = options.parse_args(argv)
    rows, kinds = [], ("pulse", "step", "full", "changed", "tick")
    heads = " ".join(f"{kind:>8}" for kind in kinds)
    print(f"{'nodes':>6} {'ranks':>6} {heads} {'1 Hz':>8}   us per event; share of a core")
    for nodes in given.nodes:
        row = measure(nodes, given.ranks, given.beats) | recovery(nodes, given.ranks)
        rows.append(row)
        figures = " ".join(f"{row[f'{kind}_us']:8.1f}" for kind in kinds)
        print(f"{nodes:6} {row['ranks']:6} {figures} {row['core_at_1_hz']:8.4f}", flush=True)
    wrong = [
        f"{row['nodes']} nodes: {kind} {row[f'{kind}_us']} us"
        for row in rows
        for kind in kinds[:-1]
        if row[f"{kind}_us"] > LIMIT_US
    ]
    return finish(given.out, wrong, f"every beat within {LIMIT_US:g} us", rows=rows)


if __name__ == "__main__":
    sys.exit(main())
