"""A killed service comes back by itself, and no worker notices."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from headway.ckpt_store.client import newest
from headway.common.node.arena import Arena
from headway.common.node.arming import arm, fired
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.common.wire.messages.driver import Status
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.testkit.journal import query

SERVICES = ("dataloader", "ckpt_store", "agent", "zygote", "monitor", "driver")

PATIENCE = "health.silence_floor_s=20"
"""Ranks wait for batches while the dataloader starts again, mostly for its imports: 0.9 s measured
on two idle processors, 4 to 7 s beside six busy processes, above the default limit of 2 s."""


class Live:
    """A run that goes on for longer than the tests."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        overrides = machine.settings(
            machine.two_ranks, "train.steps=1000000", "ckpt.durable_every=10", PATIENCE
        )
        words = ("run", "examples/tiny.toml", "--name", "down", "--detach")
        machine.in_process(*words, "--runs-dir", machine.runs, *overrides)
        self.run = Run(machine.runs / "down")

    def healthy(self, beyond_step: int = -1) -> Status:
        from benchmarks.drill.look import healthy

        return healthy(self.run, beyond_step)

    def wait_replaced(self, before: Status, service: str) -> Status:
        """Until a new process serves, everything is well, and three more steps are done."""
        old = before.services[0][service]

        def new() -> bool:
            now = self.healthy().services[0]
            return now.get(service, old) != old

        self.machine.wait_until(new, f"a new {service}")
        return self.healthy(beyond_step=self.healthy().step + 2)

    def reported(self) -> set[int]:
        return {int(row[0]) for row in query(self.run, "SELECT step FROM metrics")}

    def workers(self, status: Status) -> dict[int, tuple[str, int]]:
        return {row.rank: (row.worker, row.pid) for row in status.ranks}


@pytest.fixture(scope="module")
def live(make_machine: Any) -> Iterator[Live]:
    machine = make_machine()
    with pytest.MonkeyPatch.context() as patch:
        for key, value in machine.env.items():
            patch.setenv(key, value)
        found = Live(machine)
        found.healthy(beyond_step=2)
        yield found
        found.run.stop()
        assert found.run.wait(timeout_s=60) == "stopped"
        machine.assert_clean("down")


def _end(pid: int, number: int) -> None:
    process = ProcessId.of(pid)
    assert process is not None
    assert process.kill(number)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("service", SERVICES)
def test_a_killed_service_changes_no_worker_and_no_generation(live: Live, service: str) -> None:
    before = live.healthy()
    _end(before.services[0][service], signal.SIGKILL)
    after = live.wait_replaced(before, service)
    assert live.workers(after) == live.workers(before)
    assert after.generation == before.generation
    expected = set(range(after.step))
    live.machine.wait_until(lambda: expected <= live.reported(), "every step is in the journal")


@pytest.mark.timeout(240)
def test_a_store_that_takes_long_delays_no_step(live: Live) -> None:
    before, failpoints = live.healthy(), NodePaths(live.run.folder.run_id, 0).failpoints
    key = arm(failpoints, "store.mid_flush", "sleep:8")
    live.machine.wait_until(
        lambda: key in fired(failpoints), "the store is in the middle of a flush"
    )
    held = newest(live.run.folder.checkpoints)
    during = live.healthy(beyond_step=live.healthy().step + 6)
    assert newest(live.run.folder.checkpoints) == held, (
        "six steps passed while the snapshot was held"
    )
    live.machine.wait_until(lambda: newest(live.run.folder.checkpoints) != held, "the flush ends")
    assert live.workers(during) == live.workers(before)
    assert live.healthy().generation == before.generation


@pytest.mark.timeout(240)
def test_a_stopped_service_is_replaced_like_a_killed_one(live: Live) -> None:
    before = live.healthy()
    _end(before.services[0]["ckpt_store"], signal.SIGSTOP)
    after = live.wait_replaced(before, "ckpt_store")
    assert live.workers(after) == live.workers(before)
    assert after.generation == before.generation


@pytest.mark.timeout(240)
def test_a_killed_executor_changes_no_worker_and_no_generation(live: Live) -> None:
    before = live.healthy()
    folder = ClusterFolder(live.run.cluster_folder)
    address = folder.address(0)
    assert address is not None
    address.process.kill()

    def new() -> bool:
        now = folder.address(0)
        return now is not None and now.process != address.process and now.process.alive()

    live.machine.wait_until(new, "a new executor")
    after = live.healthy(beyond_step=live.healthy().step + 2)
    assert live.workers(after) == live.workers(before)
    assert after.generation == before.generation
    assert after.services == before.services, (
        "what the dead executor kept is adopted, not started again"
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize("both", [False, True], ids=["alone", "with its executor"])
def test_a_killed_init_is_replaced_and_changes_no_worker(live: Live, both: bool) -> None:
    before = live.healthy()
    folder = ClusterFolder(live.run.cluster_folder)
    init, executor = folder.init(0), folder.living(0)
    assert init is not None and executor is not None
    init.kill()
    if both:
        executor.kill()

    def is_whole() -> bool:
        now = (folder.init(0), folder.living(0))
        return all(p is not None and p.alive() for p in now) and now[0] != init

    live.machine.wait_until(is_whole, "a new init, and an executor")
    assert (folder.living(0) == executor) is not both
    after = live.healthy(beyond_step=live.healthy().step + 2)
    assert live.workers(after) == live.workers(before)
    assert after.generation == before.generation and after.services == before.services


def test_no_step_was_done_twice_through_all_of_it(live: Live) -> None:
    live.healthy(beyond_step=live.healthy().step + 1)
    rows = query(
        live.run,
        "SELECT generation, COUNT(*), COUNT(DISTINCT step) FROM metrics GROUP BY generation",
    )
    assert [row[0] for row in rows] == [0]
    assert rows[0][1] == rows[0][2]


@pytest.mark.timeout(240)
def test_a_step_is_reported_though_the_rank_that_reports_dies_before(live: Live) -> None:
    """Its snapshot is sealed, so nobody repeats the step."""
    before, paths = live.healthy(), NodePaths(live.run.folder.run_id, 0)
    at = before.step + 50
    arm(paths.failpoints, "worker.before_report", "sleep:60", {"rank": 0, "step": at})

    def is_sealed(rank: int) -> bool:
        with Arena.open(paths.segment("arena", rank), writable=False) as arena:
            return at + 1 in {info.step for info in arena.sealed()}

    live.machine.wait_until(lambda: is_sealed(0) and is_sealed(1), "a step that is not reported")
    _end(live.workers(before)[0][1], signal.SIGKILL)
    after = live.healthy(beyond_step=at + 3)
    assert after.generation == before.generation + 1
    steps_of = "SELECT step FROM metrics WHERE generation = ? ORDER BY step"
    live.machine.wait_until(lambda: query(live.run, steps_of, (after.generation,)), "its steps")
    (last,) = query(live.run, steps_of, (before.generation,))[-1]
    (first,) = query(live.run, steps_of, (after.generation,))[0]
    assert (last, first) == (at, at + 1), "no step was repeated or lost"
