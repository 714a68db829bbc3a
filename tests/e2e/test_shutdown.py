"""SIGTERM to all processes of a paused run, as at a shutdown: it resumes at its newest step,
although no rank could make a checkpoint and its memory is gone."""

from __future__ import annotations

import shutil
import signal
from typing import Any

import pytest
from headway.ckpt_store.client import newest
from headway.common.node.arena_reader import ArenaReader

NAME = "shutdown"
SETTINGS = ("train.steps=1000000", "ckpt.durable_every=1000000")


@pytest.mark.timeout(300)
def test_a_paused_run_survives_a_shutdown(machine: Any) -> None:
    words = ["run", "examples/tiny.toml", "--name", NAME, "--detach", "--runs-dir", machine.runs]
    words += machine.settings(machine.two_ranks, SETTINGS)
    machine.in_process(*words)
    machine.wait_until(lambda: machine.status(NAME).get("step", 0) > 3, "the first steps")
    machine.in_process("pause", NAME, "--runs-dir", machine.runs)
    machine.wait_until(lambda: machine.status(NAME).get("paused"), "the pause")
    step = machine.status(NAME)["step"]
    assert newest(machine.runs / NAME / "checkpoints") is None
    for process in machine.processes():
        process.kill(signal.SIGTERM)
    machine.wait_until(lambda: not machine.processes(), "all processes ended")

    committed = []
    for path in machine.shm_root.rglob("arena-*.bin"):
        with ArenaReader.open(path, writable=False) as arena:
            committed.append(arena.committed)
    found = newest(machine.runs / NAME / "checkpoints")
    assert found is not None and found.step >= max(committed) >= step - 1
    log = (machine.runs / NAME / "logs" / "n0-ckpt_store.log").read_text()
    assert f"checkpoint of step {found.step} written from memory" in log

    shutil.rmtree(machine.shm_root / machine.run_id(NAME))  # what a reboot does
    machine.in_process(*words)

    def generations() -> list[dict[str, Any]]:
        return list(machine.events(NAME, "generation"))

    machine.wait_until(lambda: len(generations()) > 1, "the next generation")
    first, second = generations()
    assert (first["step"], first["source"]) == (0, "init")
    assert (second["step"], second["source"]) == (found.step, "durable")
    machine.in_process("stop", NAME, "--runs-dir", machine.runs)
