"""Groups and fence with real processes: right values, loopback only, and out of
anything within moments."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.common.plan.grid import Grid
from headway.common.wire.keys import KeyPair
from headway.testkit.trainer.pool import WorkerPool
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.groups import build
from headway.trainer.comm.interface import PeerLost
from headway.trainer.comm.store import StoreEndpoint

JOBS = "headway.testkit.trainer.jobs"
GRIDS = [{"tp": 2, "pp": 2, "dp": 1}, {"tp": 1, "pp": 2, "dp": 2}, {"tp": 1, "pp": 4, "dp": 1}]


def _poll(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never came true"
        time.sleep(0.001)


def _args(grid: dict[str, int], folder: Path, generation: int) -> list[dict[str, Any]]:
    world = grid["tp"] * grid["pp"] * grid["dp"]
    return [
        {"grid": grid, "rank": r, "generation": generation, "folder": str(folder)}
        for r in range(world)
    ]


@pytest.fixture
def generations(pool: WorkerPool) -> Callable[[], int]:
    return pool.next_generation


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_every_group_of_a_grid_reduces_gathers_scatters_and_passes_messages(
    pool: WorkerPool, tmp_path: Path, generations: Callable[[], int], grid: dict[str, int]
) -> None:
    from headway.common.plan.grid import Grid

    plan = Grid(**grid)
    reports = pool.run(f"{JOBS}:exchange", _args(grid, tmp_path, generations()))
    for rank, report in enumerate(reports):
        assert report["world"] == 6
        assert report["tp"] == sum(plan.group("tp", rank))
        assert report["dp"] == sum(plan.group("dp", rank))
        line = list(plan.group("pp", rank))
        assert report["gathered"] == [float(r) for r in line for _ in range(3)]
        place = line.index(rank)
        assert report["scattered"] == [len(line) * (2 * place + i) + sum(line) for i in (0, 1)]
        assert report["pipe"] == line[line.index(rank) - 1]


def test_store_and_groups_listen_on_loopback_only(
    pool: WorkerPool, tmp_path: Path, generations: Callable[[], int]
) -> None:
    reports = pool.run(f"{JOBS}:exchange", _args(GRIDS[1], tmp_path, generations()))
    addresses = [address for report in reports for address in report["listening"]]
    assert len(addresses) >= 5, "each rank's gloo and rank 0's store must have been seen"
    assert set(addresses) == {"0100007F"}


def _start_busy(pool: WorkerPool, folder: Path, generation: int, timeout_s: float = 8.0) -> None:
    for index, args in enumerate(_args(GRIDS[1], folder, generation)):
        pool.submit(index, f"{JOBS}:stay_busy", **args, timeout_s=timeout_s)


def _inside(folder: Path, generation: int) -> bool:
    return all((folder / f"inside-{generation}-{rank}").exists() for rank in range(4))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("victim", [0, 3])
def test_survivors_leave_when_a_member_is_lost_and_build_again_with_its_successor(
    pool: WorkerPool,
    tmp_path: Path,
    generations: Callable[[], int],
    victim: int,
    number: signal.Signals,
) -> None:
    generation = generations()
    _start_busy(pool, tmp_path, generation)
    _poll(lambda: _inside(tmp_path, generation))
    pool.signal(victim, number)
    survivors = [i for i in range(4) if i != victim]
    for index in survivors:
        pool.abort(index, generation)
    for index in survivors:  # a stopped member is still there: only the abort gets the others out
        assert pool.result(index)["why"].startswith(("aborted", "transport"))
    pids = [pool.pid(i) for i in survivors]
    pool.replace(victim)
    reports = pool.run(f"{JOBS}:exchange", _args(GRIDS[1], tmp_path, generations()))
    assert [report["world"] for report in reports] == [6.0] * 4
    assert [pool.pid(i) for i in survivors] == pids


def test_a_rank_leaves_a_receive_from_a_live_peer_that_never_sends(
    pool: WorkerPool, tmp_path: Path, generations: Callable[[], int]
) -> None:
    generation = generations()
    grid = {"tp": 1, "pp": 2, "dp": 1}
    for index, args in enumerate(_args(grid, tmp_path, generation)):
        pool.submit(index, f"{JOBS}:wait_for_a_silent_peer", **args)
    _poll(lambda: all((tmp_path / f"inside-{generation}-{r}").exists() for r in (0, 1)))
    pool.abort(0, generation)
    assert pool.result(0) == "aborted"
    pool.abort(1, generation)
    assert pool.result(1) == "aborted"


def test_ranks_leave_a_generation_whose_last_member_never_comes(
    pool: WorkerPool, tmp_path: Path, generations: Callable[[], int]
) -> None:
    generation = generations()
    args = _args(GRIDS[1], tmp_path, generation)
    for index in range(3):
        pool.submit(index, f"{JOBS}:stay_busy", **args[index])
    _poll((tmp_path / f"store-{generation}").exists)
    for index in (2, 1, 0):  # the store ends with rank 0
        pool.abort(index, generation)
        assert pool.result(index)["why"] == "aborted"
    reports = pool.run(f"{JOBS}:exchange", _args(GRIDS[1], tmp_path, generations()))
    assert [report["world"] for report in reports] == [6.0] * 4


def test_a_rank_that_reaches_no_store_reports_where_it_should_be() -> None:
    """And not that somebody has aborted it."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    nowhere = StoreEndpoint("127.0.0.1", port, KeyPair.generate().public.decode())
    with pytest.raises(PeerLost, match=f"no store answers at 127.0.0.1:{port}"):
        build(
            0,
            Grid(tp=1, pp=1, dp=2),
            1,
            host="127.0.0.1",
            announce=lambda _: None,
            lookup=lambda: nowhere,
            channels=Channels(),
            timeout_s=0.5,
        )


def test_a_generation_that_was_fenced_before_it_was_entered_is_left_at_once(
    pool: WorkerPool, tmp_path: Path, generations: Callable[[], int]
) -> None:
    generation = generations()
    for index in range(4):
        pool.abort(index, generation)
    _start_busy(pool, tmp_path, generation)
    assert [pool.result(index)["why"] for index in range(4)] == ["aborted"] * 4
    assert not (tmp_path / f"store-{generation}").exists()


def test_threads_and_descriptors_stay_flat_over_repeated_rebuilds_under_fire(
    pool: WorkerPool, tmp_path: Path, generations: Callable[[], int]
) -> None:
    for index in range(4):  # what earlier tests abandoned has limits of its own
        pool.replace(index)
    pool.run(f"{JOBS}:exchange", _args(GRIDS[1], tmp_path, generations()))
    limits = {"max_threads": 2, "max_fds": 1000, "limit_s": 60}  # main and control
    first = pool.run(f"{JOBS}:left_behind", [limits] * 4)
    fds = max(report["fds"] for report in first)
    for _ in range(12):
        generation = generations()
        # an operation that gloo loses ends with it
        _start_busy(pool, tmp_path, generation, timeout_s=3.0)
        _poll(lambda generation=generation: _inside(tmp_path, generation))  # type: ignore[misc]
        for index in range(4):
            pool.abort(index, generation)
        for index in range(4):
            pool.result(index)
    limits = {"max_threads": 2, "max_fds": fds, "limit_s": 60}
    for report in pool.run(f"{JOBS}:left_behind", [limits] * 4):
        assert report["threads"] <= 2, report["stuck"]
        assert report["fds"] <= fds, report["stuck"]
