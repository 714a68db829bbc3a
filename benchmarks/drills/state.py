"""D3, D4, D5, D11: where the state of a run lies is full, damaged, wrong, or all that is left."""

from __future__ import annotations

import random
import signal
import time

from headway.ckpt_store.client import newest
from headway.common.node.arena import Arena
from headway.common.node.run_dir import NodePaths
from headway.common.wire.messages.driver import Status
from headway.console.run import Run
from headway.controller.faults import faults

from benchmarks.digest import final_digest
from benchmarks.drills.judge import Report
from benchmarks.drills.place import events_of, last_generation, status_of
from benchmarks.drills.rig import Rig

FULL_S = 60.0
DAMAGE_WORDS = ("corrupt", "damaged", "digest", "flipped", "arena-")


def d3(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """The runs' disk is full for 60 s; KILL an executor and its rank meanwhile."""
    run = rig.launch("d3")
    before = rig.healthy(run, 10)
    away = next(row for row in before.ranks if row.node != rig.home(before))
    executor, worker = rig.executor(run, away.node), rig.worker(before, away.rank)
    begun = time.monotonic()
    if faulty:
        holder = rig.strike(run, "full_disk", [], FULL_S)
    time.sleep(rng.uniform(8.0, 20.0))
    executor.kill()
    worker.kill()
    time.sleep(max(0.0, FULL_S - 5.0 - (time.monotonic() - begun)))
    alive = len(rig.executors(run))
    if faulty:
        rig.wait(lambda: not holder.alive(), 20.0)
    recovered = rig.steps_on(run, 45.0, lambda s: worker.pid not in {row.pid for row in s.ranks})
    return {"recovered_s": recovered, "executors": alive, "left": rig.finish(run)}


def d4(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """The first byte of a rank's snapshot memory becomes 0xff; KILL that rank."""
    run, rank = rig.launch("d4"), rng.randrange(2)
    before = rig.healthy(run, 20 + rng.randrange(40))
    rig.wait(lambda: newest(run.folder.checkpoints) is not None, 30.0)
    begun, node = time.monotonic(), rig.node_of(before, rank)
    if faulty:
        faults.inject("damaged_arena_header", [], rig.places(run, node), rank=rank)
    rig.worker(before, rank).kill()
    recovered = rig.steps_on(run, 45.0, lambda s: s.generation > before.generation)
    return {
        "recovered_s": recovered,
        "source": last_generation(run).get("source"),
        "file": f"arena-{rank}.bin",
        "events": events_of(run, begun),
        "left": rig.finish(run),
    }


def d5(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """Pause; flip a bit in each slot of a rank; KILL it; resume; finish.
    Then the same run undisturbed."""
    steps, rank = 400, rng.randrange(2)
    run = rig.launch("d5", steps=steps)
    before = rig.healthy(run, 20 + rng.randrange(60))
    run.wait_applied(run.pause())
    begun, node = time.monotonic(), rig.node_of(before, rank)
    if faulty:
        faults.inject("flipped_snapshot_bit", [], rig.places(run, node), rank=rank)
    rig.worker(before, rank).kill()
    rig.wait(lambda: _generation(status_of(run)) > before.generation, 45.0)
    run.resume()
    run.wait(180.0)
    left, digest = rig.finish(run), final_digest(run) if run.outcome == "finished" else ""
    other = rig.launch("undisturbed", steps=steps)
    assert other.wait(180.0) == "finished"
    return {
        "digest": digest,
        "reference": final_digest(other),
        "words": DAMAGE_WORDS,
        "events": events_of(run, begun),
        "outcomes": ("finished",),
        "left": left,
    }


def d11(rig: Rig, rng: random.Random, faulty: bool) -> Report:
    """KILL all inits, executors and the driver at once; start the run again.
    Its control stops the run first."""
    run = rig.launch("d11")
    before = rig.healthy(run, 20 + rng.randrange(60))
    if faulty:
        victims = [*rig.inits(run), *rig.executors(run)]
        victims.append(rig.service(before, rig.home(before), "driver"))
        workers = [rig.worker(before, row.rank) for row in before.ranks]
        for victim in victims:
            victim.kill()
        time.sleep(rng.uniform(0.0, 3.0))
        for worker in workers:  # so that what they have done can be counted
            worker.kill(signal.SIGSTOP)
        reached = _committed(run, before)
    else:
        run.stop()
        run.wait(60.0)
        found = newest(run.folder.checkpoints)
        reached = found.step if found is not None else -1
    rig.launch("d11")
    recovered = rig.steps_on(run, 60.0, lambda s: s.epoch > before.epoch)
    last = last_generation(run)
    return {
        "recovered_s": recovered,
        "source": last.get("source"),
        "steps_again": max(0, reached - int(last.get("step", -1))),
        "left": rig.finish(run),
    }


def _generation(status: Status | None) -> int:
    return status.generation if status is not None else -1


def _committed(run: Run, status: Status) -> int:
    """The newest step that some rank knows to be complete."""
    steps = []
    for row in status.ranks:
        path = NodePaths(run.folder.run_id, row.node).segment("arena", row.rank)
        with Arena.open(path, writable=False) as arena:
            steps.append(arena.committed)
    return max(steps)
