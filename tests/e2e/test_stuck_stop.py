"""`headway stop` ends a run whose processes cannot help:
stopped, frozen by a cgroup, or diverged."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store.client import newest
from headway.common.node.freezer import frozen_by
from headway.common.node.janitor import processes_of
from headway.console.lifecycle.ending import end
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder

NAME = "stuck"
FREEZER = Path("/sys/fs/cgroup/freezer")


def _launch(machine: Any, *settings: str) -> Run:
    machine.in_process(
        "run", "examples/tiny.toml", "--name", NAME, "--detach", "--runs-dir", machine.runs,
        *machine.settings(machine.two_ranks, "train.steps=1000000", *settings),
    )  # fmt: skip
    run = Run(machine.runs / NAME)
    machine.wait_until(lambda: newest(run.folder.checkpoints), "a checkpoint is complete")
    return run


def _pids(run: Run, *names: str) -> list[int]:
    cluster = ClusterFolder(run.cluster_folder)
    address, init = cluster.address(0), cluster.init(0)
    assert address is not None and init is not None
    services = run.status(10.0).services[0]
    known = {**services, "executor": address.process.pid, "init": init.pid}
    return [known[name] for name in names]


@pytest.mark.timeout(240)
def test_a_run_whose_init_executor_and_driver_are_stopped_is_ended_by_force(machine: Any) -> None:
    """Its ranks train on, and its store writes checkpoints more often than the limit."""
    run = _launch(machine, "ckpt.durable_every=1")
    for pid in _pids(run, "init", "executor", "driver"):  # the init would start another executor
        os.kill(pid, signal.SIGSTOP)
    text = machine.in_process("stop", NAME, "--limit", "3", "--runs-dir", machine.runs, code=3)
    assert "by force" in text and "no driver has answered for 3 s" in text
    assert "the newest checkpoint is of step" in text
    machine.assert_clean(NAME)
    assert newest(run.folder.checkpoints) is not None
    assert run.state == "interrupted"


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A freezer cgroup of this test alone."""
    folder = FREEZER / f"headway-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer cgroup can be made: {error}")
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    import time

    deadline = time.monotonic() + 20
    while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    folder.rmdir()


@pytest.mark.timeout(240)
def test_a_frozen_process_is_named_with_its_cgroup_and_ends_when_thawed(
    machine: Any, cgroup: Path
) -> None:
    run = _launch(machine, "ckpt.durable_every=5")
    (pid,) = _pids(run, "executor")
    (cgroup / "cgroup.procs").write_text(str(pid))
    (cgroup / "freezer.state").write_text("FROZEN")
    assert frozen_by(pid) == f"/{cgroup.name}"
    ending = end(run, now=True)
    assert ending.exit_code(now=True) == 1
    assert len(ending.left) == 1 and f"pid {pid} (frozen by cgroup /{cgroup.name}" in ending.left[0]
    left = [process.pid for process in processes_of(run.folder.run_id)]
    assert left == [pid], "everything else has ended"
    (cgroup / "freezer.state").write_text("THAWED")
    machine.wait_until(lambda: not processes_of(run.folder.run_id), "it ends when thawed")
    with pytest.raises(Exception, match="not live"):
        end(run, now=True)


@pytest.mark.timeout(240)
def test_a_diverged_run_ends_by_name_and_keeps_its_last_good_checkpoint(machine: Any) -> None:
    run = _launch(machine, "ckpt.durable_every=5", "ckpt.keep=1", "train.max_skipped_steps=12")
    refused = machine.in_process("set", NAME, "lr=1e30", "--runs-dir", machine.runs, code=2)
    assert "more than 100 times optim.lr" in refused
    machine.in_process("set", NAME, "lr=1e30", "--force", "--runs-dir", machine.runs)
    assert run.wait(timeout_s=100) == "failed"
    detail = run.fact("detail")
    assert "training has diverged: 12 steps in a row were skipped" in detail
    first = int(detail.partition("were skipped, ")[2].split()[0])
    found = newest(run.folder.checkpoints)
    assert found is not None and 0 < found.step < first
    assert f"the newest is of step {found.step}" in detail
    status = machine.in_process("status", NAME, "--runs-dir", machine.runs)
    assert "steps skipped, last at step" in status
    machine.assert_clean(NAME)
