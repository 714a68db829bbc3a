"""D3 to D5, D11, D13 to D15: snapshots and checkpoints that are damaged, elsewhere or all that is
left; disks that are full or hang."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from headway.ckpt_store.client import newest
from headway.common.node.arena import Arena
from headway.common.node.run_dir import NodePaths
from headway.console.run import TERMINAL_OUTCOMES
from headway.controller.faults import faults
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.local import LocalEngine

from benchmarks.digest import final_digest
from benchmarks.drill import look
from benchmarks.drill.judge import Report
from benchmarks.drill.scene import Scene

FULL_S = 60.0
KEEP = "ckpt.keep=2"
DAMAGE_WORDS = ("corrupt", "damaged", "digest", "flipped", "arena-")


def d4(scene: Scene) -> Report:
    """The first byte of a rank's snapshot memory becomes 0xff; KILL that rank."""
    scene.launch("launch.spares=0", beyond=20, more=40)
    rank = scene.rng.randrange(2)
    look.seconds_until(lambda: newest(scene.run.folder.checkpoints) is not None, 30.0)
    _damage(scene, "damaged_arena_header", rank)
    scene.worker(rank).kill()
    scene.recover(lambda s: s.generation > scene.before.generation)
    return scene.end(file=f"arena-{rank}.bin")


def d5(scene: Scene) -> Report:
    """Pause; flip a bit in each slot of a rank; KILL it; resume; finish. Then the same run
    undisturbed."""
    scene.launch(beyond=20, more=60, steps=400)
    run, rank, generation = scene.run, scene.rng.randrange(2), scene.before.generation
    run.wait_applied(run.pause())
    _damage(scene, "flipped_snapshot_bit", rank)
    scene.worker(rank).kill()
    look.seconds_until(lambda: look.reports(run, lambda s: s.generation > generation), 45.0)
    run.resume()
    run.wait(180.0)
    report = scene.end(words=DAMAGE_WORDS, outcomes=("finished",))
    other = scene.rig.launch("undisturbed", steps=400)
    assert other.wait(180.0) == "finished"
    digest = final_digest(run) if run.outcome == "finished" else ""
    return {**report, "digest": digest, "reference": final_digest(other)}


def d11(scene: Scene) -> Report:
    """KILL all inits, executors and the driver at once; start the run again. Its control stops the
    run first."""
    scene.launch(beyond=20, more=60)
    run = scene.run
    if scene.faulty:
        workers = [scene.worker(row.rank) for row in scene.before.ranks]
        driver = scene.parts(scene.home).services["driver"]
        # inits first: each would start its executor again
        for victim in [*look.of_role(run, "init"), *look.of_role(run, "executor"), driver]:
            victim.kill()
        time.sleep(scene.rng.uniform(0.0, 3.0))
        for worker in workers:  # so that what they have done can be counted
            worker.kill(signal.SIGSTOP)
        reached = max(_committed(scene, row.rank) for row in scene.before.ranks)
    else:
        run.stop()
        run.wait(60.0)
        found = newest(run.folder.checkpoints)
        reached = found.step if found is not None else -1
    scene.run = run = scene.rig.launch("drill")
    scene.recover(lambda s: s.epoch > scene.before.epoch)
    resumed = look.generations_of(run)[-1]["step"]
    return scene.end(steps_again=max(0, reached - resumed))


def _damage(scene: Scene, fault: str, rank: int) -> None:
    """Begin the part of the drill that its events are about; damage what a rank has in memory."""
    scene.begun_s = time.monotonic()
    if scene.faulty:
        places = look.places_of(scene.run, look.node_of(scene.before, rank))
        faults.inject(fault, [], places, rank=rank)


def _committed(scene: Scene, rank: int) -> int:
    """The newest step that a rank knows to be complete."""
    node = look.node_of(scene.before, rank)
    path = NodePaths(scene.run.folder.run_id, node).segment("arena", rank)
    with Arena.open(path, writable=False) as arena:
        return arena.committed


def d3(scene: Scene) -> Report:
    """The runs' disk is full for 60 s; KILL an executor and its rank meanwhile."""
    scene.launch()
    run, away = scene.run, scene.away
    executor, worker = scene.parts(away.node).services["executor"], scene.worker(away.rank)
    if scene.faulty:
        holder = scene.rig.hold(run, "full_disk", [], FULL_S)
    time.sleep(scene.rng.uniform(8.0, 20.0))
    executor.kill()
    worker.kill()
    time.sleep(max(0.0, FULL_S - 5.0 - (time.monotonic() - scene.begun_s)))
    alive = len(look.of_role(run, "executor"))
    if scene.faulty:
        look.seconds_until(lambda: not holder.alive(), 20.0)
    scene.recover(lambda s: worker.pid not in look.pids_of(s).values())
    return scene.end(executors=alive)


def d13(scene: Scene) -> Report:
    """Stop; flip a byte in a rank's part of every checkpoint; start; repair it; start again."""
    scene.launch(KEEP, beyond=20, more=40)
    run, rank = scene.run, scene.rng.randrange(2)
    scene.rig.finish(run)
    outcome, detail = "failed", "every checkpoint is damaged"
    files = sorted(run.folder.checkpoints.glob(f"step-*/rank-{rank}.safetensors"))
    if scene.faulty:
        _flip(files)
        run = scene.rig.launch("drill", KEEP)
        look.seconds_until(lambda: run.outcome in TERMINAL_OUTCOMES, 60.0)
        outcome, detail = run.outcome, run.fact("detail")
        scene.rig.finish(run)
    kept = all(file.exists() for file in files)
    if scene.faulty and kept:
        _flip(files)
    scene.run = scene.rig.launch("drill", KEEP)
    scene.recover()
    return scene.end(outcome=outcome, detail=detail, kept=kept)


def d14(scene: Scene) -> Report:
    """An empty folder where the checkpoints were; a node is lost; then the folder is back."""
    scene.launch(KEEP, beyond=20, more=40)
    run, folder = scene.run, scene.run.folder.checkpoints
    look.seconds_until(lambda: newest(folder) is not None, 30.0)
    scene.begun_s = time.monotonic()
    away, other = folder.with_name("away"), folder.with_name("other")
    if scene.faulty:
        folder.rename(away)
        folder.mkdir()
    LocalEngine(ClusterFolder(run.cluster_folder)).lose_node(scene.away.node)
    time.sleep(scene.rng.uniform(8.0, 15.0))
    if scene.faulty:
        folder.rename(other)
        away.rename(folder)
    scene.recover(lambda s: s.generation > scene.before.generation)
    return scene.end()


def d15(scene: Scene) -> Report:
    """``fsfreeze`` of the runs' file system for 12 to 18 s while the run trains: every write to it
    waits, as on a stuck network mount."""
    scene.rig.mount_image()
    scene.launch(beyond=20)
    with _frozen(scene.rig.runs) if scene.faulty else contextlib.nullcontext():
        time.sleep(scene.rng.uniform(12.0, 18.0))
        meanwhile = look.status_of(scene.run)
    scene.recover(more=20)
    look.healthy(scene.run)
    reached = meanwhile.step - scene.before.step if meanwhile is not None else -1
    return scene.end(steps_meanwhile=reached)


@contextlib.contextmanager
def _frozen(folder: Path) -> Iterator[None]:
    subprocess.run(["fsfreeze", "-f", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", str(folder)], check=True)


def _flip(files: list[Path]) -> None:
    """Turn the byte in the middle of each file round; a second time repairs it."""
    for file in files:
        with file.open("r+b") as opened:
            opened.seek(file.stat().st_size // 2)
            (byte,) = opened.read(1)
            opened.seek(-1, 1)
            opened.write(bytes([byte ^ 0xFF]))
