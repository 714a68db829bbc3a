"""What the benchmark of Slurm calls wrong."""

from __future__ import annotations

import pytest

from benchmarks.slurm import AGAIN_LIMIT_S, NODES, faults_of

FURTHER = {"jobs": 3, "stepping_s": 11.0, "each_s": [11.0, 9.0], "spare_again_s": [40.0, 41.0]}
WRONG = {
    "too late": ({**FURTHER, "stepping_s": AGAIN_LIMIT_S + 1}, "16.0 s, not 15"),
    "no further job": ({**FURTHER, "jobs": 1}, "1 jobs, not 2 to 4"),
    "a job too many": ({**FURTHER, "jobs": NODES + 2}, "5 jobs, not 2 to 4"),
}


@pytest.mark.parametrize(("found", "expected"), WRONG.values(), ids=WRONG)
def test_a_case_that_ends_in_another_way_is_wrong(found: dict[str, object], expected: str) -> None:
    [wrong] = faults_of(found)
    assert expected in wrong


def test_a_case_without_these_measurements_is_right() -> None:
    assert faults_of(FURTHER) == faults_of({"checkpoint": "step-00000005.g0"}) == []
