"""A run that is broken off in the middle of a step goes on to the same bits."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from headway.common.node.arena import Arena
from headway.common.node.arming import arm, fired
from headway.testkit.trainer.layouts import STEPS, Layout
from headway.testkit.trainer.pool import JobFailed, WorkerPool
from headway.testkit.trainer.training import Trained, arena_path, collect, train_layout

LAYOUT = Layout("pp2xdp2", "1f1b", "serial")
WORLD = 4
JOB = "headway.testkit.trainer.training:train"


@pytest.fixture(scope="module")
def undisturbed(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("undisturbed")
    return train_layout(pool, LAYOUT.config("bf16"), WORLD, folder, STEPS)


@pytest.fixture(scope="module")
def undisturbed_lamb(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("undisturbed_lamb")
    return train_layout(pool, _tied_with_lamb(), WORLD, folder, STEPS)


def _tied_with_lamb() -> dict[str, Any]:
    """The first and the last stage share a table; norms are summed over dp before the update."""
    config = Layout("pp2xdp2", "1f1b", "serial", family="gpt2").config("bf16")
    config["optim"]["name"] = "lamb"
    return config


def _poll(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never came true"
        time.sleep(0.001)


def _submit(
    pool: WorkerPool,
    folder: Path,
    generation: int,
    every: int = 1,
    *,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    config = config or LAYOUT.config("bf16")
    config["ckpt"] = {**config.get("ckpt", {}), "snapshot_every": every}
    for rank in range(WORLD):
        pool.submit(
            rank,
            JOB,
            config=config,
            rank=rank,
            generation=generation,
            folder=str(folder),
            until=STEPS,
            arena=True,
            keep=f"session-{folder}",
            **options,
        )


def _restore_step(folder: Path) -> int:
    arenas = [Arena.open(arena_path(folder, rank), writable=False) for rank in range(WORLD)]
    steps = [{info.step for info in arena.sealed()} for arena in arenas]
    step = max(set.intersection(*steps), default=None)
    for arena in arenas:
        arena.close()
    assert step is not None, "there is no step that all ranks have sealed"
    return step


def _finish(
    pool: WorkerPool, folder: Path, every: int = 1, **options: Any
) -> tuple[int, list[dict[str, Any]]]:
    """Join a new generation, restore, run to the end."""
    step = _restore_step(folder)
    options |= {"source": "arena", "step": step, "grads_of": -1}
    _submit(pool, folder, pool.next_generation(), every, **options)
    reports = [pool.result(rank) for rank in range(WORLD)]
    assert [report["why"] for report in reports] == ["done"] * WORLD
    return step, reports


def _assert_same(
    undisturbed: Trained, early: list[Mapping[str, Any]], late: Trained, step: int
) -> None:
    """Every step, also one done twice, has the undisturbed run's loss;
    the end has its parameters."""
    assert sorted(late.losses) == list(range(step, STEPS))
    for losses in [
        late.losses,
        *({int(k): float.fromhex(v) for k, v in r["losses"].items()} for r in early),
    ]:
        for number, loss in losses.items():
            assert loss == undisturbed.losses[number], f"step {number} came out differently"
    for name, value in undisturbed.params.items():
        assert (late.params[name] == value).all(), f"{name} ends differently"


@pytest.mark.parametrize("source", ["arena", "durable"])
def test_a_restored_run_continues_bit_for_bit(
    pool: WorkerPool, tmp_path: Path, undisturbed: Trained, source: str
) -> None:
    config = LAYOUT.config("bf16")
    early = train_layout(pool, config, WORLD, tmp_path, 8, arena=True)
    late = train_layout(
        pool, config, WORLD, tmp_path, STEPS, arena=True, source=source, step=8, grads_of=-1
    )
    assert {**early.losses, **late.losses} == undisturbed.losses
    for name, value in undisturbed.params.items():
        assert (late.params[name] == value).all()


@pytest.mark.parametrize("source", ["arena", "durable"])
def test_so_does_one_with_chunks_in_a_v(pool: WorkerPool, tmp_path: Path, source: str) -> None:
    config = Layout("pp2", "zb-v", "serial", family="gpt2").config("bf16")
    whole = train_layout(pool, config, 2, tmp_path / "whole", 5)
    early = train_layout(pool, config, 2, tmp_path, 3, arena=True)
    late = train_layout(
        pool, config, 2, tmp_path, 5, arena=True, source=source, step=3, grads_of=-1
    )
    assert {**early.losses, **late.losses} == whole.losses
    for name, value in whole.params.items():
        assert (late.params[name] == value).all()


def test_leaving_in_the_middle_of_a_step_changes_nothing(
    pool: WorkerPool, tmp_path: Path, undisturbed: Trained
) -> None:
    generation = pool.next_generation()
    pids = [pool.pid(rank) for rank in range(WORLD)]
    _submit(pool, tmp_path, generation)
    progress = tmp_path / f"progress-{generation}-0"
    _poll(lambda: progress.exists() and progress.read_text() not in ("", "0", "1", "2"))
    for rank in range(WORLD):
        pool.abort(rank, generation)
    early = [pool.result(rank) for rank in range(WORLD)]
    assert all(report["why"] != "done" for report in early)
    step, reports = _finish(pool, tmp_path)
    assert step >= max(report["step"] for report in early) - 1, (
        "more than one completed step is done again"
    )
    _assert_same(undisturbed, early, collect(reports, tmp_path), step)
    assert [pool.pid(rank) for rank in range(WORLD)] == pids


@pytest.mark.parametrize(
    "point",
    [
        "worker.in_forward",
        "snapshot.before_seal",
        "snapshot.mid_seal",
        "arena.seal",
        "worker.mid_optimizer",
    ],
)
@pytest.mark.parametrize("victim", [0, 3])
def test_a_killed_rank_is_replaced_and_nothing_changes(
    pool: WorkerPool, tmp_path: Path, undisturbed: Trained, point: str, victim: int
) -> None:
    failpoints = tmp_path / "failpoints.bin"
    arm(failpoints, point, "kill", {"rank": victim, "step": 7})
    generation = pool.next_generation()
    _submit(pool, tmp_path, generation, failpoints=str(failpoints))
    with pytest.raises(JobFailed, match="ended"):
        pool.result(victim)
    assert fired(failpoints)
    survivors = [rank for rank in range(WORLD) if rank != victim]
    for rank in survivors:
        pool.abort(rank, generation)
    early = [pool.result(rank) for rank in survivors]
    pids = [pool.pid(rank) for rank in survivors]
    pool.replace(victim)
    step, reports = _finish(pool, tmp_path)
    assert step in (6, 7)
    assert step >= max(report["step"] for report in early) - 1, (
        "more than one completed step is done again"
    )
    _assert_same(undisturbed, early, collect(reports, tmp_path), step)
    assert [pool.pid(rank) for rank in survivors] == pids


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("point", ["worker.in_forward", "worker.stage_sum"])
def test_so_is_one_that_shares_a_tied_table_or_dies_in_the_sums_of_lamb(
    pool: WorkerPool, tmp_path: Path, undisturbed_lamb: Trained, point: str, victim: int
) -> None:
    failpoints = tmp_path / "failpoints.bin"
    arm(failpoints, point, "kill", {"rank": victim, "step": 7})
    generation, config = pool.next_generation(), _tied_with_lamb()
    _submit(pool, tmp_path, generation, config=config, failpoints=str(failpoints))
    with pytest.raises(JobFailed, match="ended"):
        pool.result(victim)
    assert fired(failpoints)
    survivors = [rank for rank in range(WORLD) if rank != victim]
    for rank in survivors:
        pool.abort(rank, generation)
    early = [pool.result(rank) for rank in survivors]
    pool.replace(victim)
    step, reports = _finish(pool, tmp_path, config=config)
    assert step in (6, 7)
    _assert_same(undisturbed_lamb, early, collect(reports, tmp_path), step)


@pytest.mark.parametrize(("killed_at", "restored"), [(5, 3), (6, 6), (8, 6)])
def test_with_fewer_snapshots_a_recovery_repeats_the_steps_since_the_newest(
    pool: WorkerPool, tmp_path: Path, undisturbed: Trained, killed_at: int, restored: int
) -> None:
    failpoints = tmp_path / "failpoints.bin"
    arm(failpoints, "worker.mid_optimizer", "kill", {"rank": 1, "step": killed_at})
    generation = pool.next_generation()
    _submit(pool, tmp_path, generation, 3, failpoints=str(failpoints))
    with pytest.raises(JobFailed, match="ended"):
        pool.result(1)
    assert fired(failpoints)
    survivors = [rank for rank in range(WORLD) if rank != 1]
    for rank in survivors:
        pool.abort(rank, generation)
    early = [pool.result(rank) for rank in survivors]
    pool.replace(1)
    step, reports = _finish(pool, tmp_path, 3)
    assert step == restored
    assert step >= max(report["step"] for report in early) - 3
    _assert_same(undisturbed, early, collect(reports, tmp_path), step)


def test_a_stopped_rank_holds_nobody(
    pool: WorkerPool, tmp_path: Path, undisturbed: Trained
) -> None:
    generation = pool.next_generation()
    _submit(pool, tmp_path, generation)
    progress = tmp_path / f"progress-{generation}-0"
    _poll(lambda: progress.exists() and progress.read_text() not in ("", "0", "1", "2"))
    pool.signal(2, signal.SIGSTOP)
    survivors = (0, 1, 3)
    for rank in survivors:
        pool.abort(rank, generation)
    early = [pool.result(rank) for rank in survivors]
    pool.replace(2)
    step, reports = _finish(pool, tmp_path)
    _assert_same(undisturbed, early, collect(reports, tmp_path), step)


def test_no_step_ends_before_every_rank_has_sealed_the_state_it_began_with(
    pool: WorkerPool, tmp_path: Path
) -> None:
    """Catches a norm all-reduce that does not wait for the seal:
    its rank's would then come too late."""
    failpoints = tmp_path / "failpoints.bin"
    for step in (3, 4):
        arm(failpoints, "snapshot.mid_seal", "sleep:0.4", {"rank": 1, "step": step})
    generation = pool.next_generation()
    _submit(pool, tmp_path, generation, failpoints=str(failpoints))
    reports = [pool.result(rank) for rank in range(WORLD)]
    assert len(fired(failpoints)) == 2
    for report in reports:
        assert report["committed"] == {str(step): step for step in range(STEPS)}
