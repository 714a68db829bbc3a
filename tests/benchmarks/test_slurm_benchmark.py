"""What the benchmark of Slurm calls wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from headway.ckpt_store.client import CheckpointClient

from benchmarks.drill.slurm import AGAIN_LIMIT_S, NODES, judge, last_checkpoint

FURTHER = {"jobs": 3, "stepping_s": 11.0, "each_s": [11.0, 9.0], "spare_again_s": [40.0, 41.0]}
LIMITED = {"time_limit_s": 180.0, "stopped_after_s": 139.3, "checkpoint": "step-00001357.g0"}
WRONG = {
    "too late": ({**FURTHER, "stepping_s": AGAIN_LIMIT_S + 1}, "16.0 s, not 15"),
    "no further job": ({**FURTHER, "jobs": 1}, "1 jobs, not 2 to 4"),
    "a job too many": ({**FURTHER, "jobs": NODES + 2}, "5 jobs, not 2 to 4"),
    "only at the time limit": ({**LIMITED, "stopped_after_s": 182.5}, "182.5 s, not 165"),
    "a little before it": ({**LIMITED, "stopped_after_s": 165.1}, "165.1 s, not 165"),
}


@pytest.mark.parametrize(("found", "expected"), WRONG.values(), ids=WRONG)
def test_a_case_that_ends_in_another_way_is_wrong(found: dict[str, object], expected: str) -> None:
    [wrong] = judge(found)
    assert expected in wrong


def test_a_case_without_these_measurements_is_right() -> None:
    assert judge(FURTHER) == judge({"checkpoint": "step-00000005.g0"}) == []


def test_a_run_that_stops_well_before_its_time_limit_is_right() -> None:
    assert judge(LIMITED) == []


def _checkpoints(folder: Path, *steps: int) -> Path:
    """A folder with checkpoints of these steps."""
    for step in steps:
        CheckpointClient(folder).save(step, {"w": np.zeros(2)})
    return folder


def test_the_last_checkpoint_holds_all_steps(tmp_path: Path) -> None:
    found = last_checkpoint(_checkpoints(tmp_path, 5, 7), range(7))
    assert found is not None and found.step == 7


@pytest.mark.parametrize(
    ("checkpoints", "steps"),
    [([5], 7), ([5, 6], 7), ([5, 8], 7), ([], 7), ([5], 0)],
    ids=["periodic", "a step is missing", "ahead of the journal", "none", "no step"],
)
def test_a_checkpoint_of_another_step_is_not_the_last(
    tmp_path: Path, checkpoints: list[int], steps: int
) -> None:
    assert last_checkpoint(_checkpoints(tmp_path, *checkpoints), range(steps)) is None


def test_a_checkpoint_without_its_manifest_is_not_the_last(tmp_path: Path) -> None:
    (_checkpoints(tmp_path, 5) / "step-00000007.g0").mkdir()
    assert last_checkpoint(tmp_path, range(7)) is None
