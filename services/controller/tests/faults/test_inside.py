"""Faults that a rank does to itself are armed for it alone, and refused where they mean nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.common.node.arming import armed
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import RunDir
from headway.common.node.testing import python_child, read_line, wait_until
from headway.controller.faults import cgroups
from headway.controller.faults.faults import Places, hold, inject
from headway.controller.faults.inside import INSIDE, check_layout
from headway.health.config import HealthConfig
from headway.trainer.config import LaunchConfig, ParallelConfig, RunConfig

GREEDY = """
import os, time
print(os.getpid(), flush=True)
kept = []
while True:
    kept.append(bytearray(1 << 16))
    time.sleep(0.001)
"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    (tmp_path / "n0").mkdir()
    return Places(tmp_path / "run", tmp_path / "n0", tmp_path / "cluster")


@pytest.mark.parametrize("fault", sorted(INSIDE))
def test_what_a_rank_does_to_itself_is_armed_for_this_rank_only(fault: str, places: Places) -> None:
    said = inject(fault, [ProcessId.current()], places, 7.0, rank=3)
    (entry,) = armed(places.shm_dir.parent / "failpoints.bin")
    assert entry.where == {"rank": 3, **INSIDE[fault].where} and entry.name == INSIDE[fault].point
    assert entry.action in said and said.startswith("rank 3 will do")
    assert entry.action.endswith(":7") or entry.action.startswith("damage:")


def test_the_same_fault_twice_is_armed_twice(places: Places) -> None:
    for _ in range(2):
        inject("nan", [], places, rank=0)
    assert len(armed(places.shm_dir.parent / "failpoints.bin")) == 2


def test_a_collective_of_replicas_is_not_broken_in_a_run_without_them() -> None:
    alone, two = (
        RunConfig(parallel=ParallelConfig(dp=dp), launch=LaunchConfig(ranks_per_node=dp))
        for dp in (1, 2)
    )
    for fault in ("skip", "mismatch", "flip_weight"):
        check_layout(fault, two)
        with pytest.raises(InputError, match=f"{fault!r} needs replicas"):
            check_layout(fault, alone)
    check_layout("hang", alone)
    unwatched = replace(two, health=HealthConfig(digest_every=0))
    with pytest.raises(InputError, match=r"health\.digest_every is 0"):
        check_layout("flip_weight", unwatched)


def test_a_process_without_memory_is_ended_by_the_kernel(places: Places) -> None:
    if cgroups.root("memory") is None:
        pytest.skip("no control group with memory can be made here")
    RunDir.create(places.run_dir, run_id="00c0ffee")
    with python_child(GREEDY) as child:
        process = ProcessId.of(int(read_line(child)))
        assert process is not None
        holder = hold("oom", [process], places, 30.0)
        child.wait(30)
        assert child.returncode == -9
        wait_until(lambda: not holder.alive(), what="nothing is left to hold")
