"""Every module of the comparison with peers still runs, at a tiny size, and measures equal work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.train import (
    executor,
    gpu,
    memory,
    one_process,
    overlap,
    report,
    rounds,
    several,
    table,
)
from benchmarks.train.shapes import SHAPES
from benchmarks.train.sides import SideFailed, Spec, team
from benchmarks.train.zygote import forked_workers

TINY = ["--tiny", "--no-compile", "--rounds", "1", "--dtype", "fp32"]
SAME_CURVE = 2e-4
"""Nats between two engines in fp32 over four steps from the same weights."""


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    """Importing torch in every process would take most of the time."""
    with forked_workers():
        yield


def _run(module: Any, out: Path, *more: str) -> dict[str, Any]:
    assert module.main([*TINY, *more, "--out", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["machine"]["cores"] >= 1 and found["machine"]["torch"]
    return found


def test_one_process_is_compared_with_equal_work(tmp_path: Path) -> None:
    out = tmp_path / "train_one_process.json"
    found = _run(one_process, out)
    (row,) = found["rows"].values()
    assert row["failed"] == {} and set(row["sides"]) == {"headway", "torch", "limit"}
    assert row["ratios"]["torch"]["median"] > 0
    assert found["curves"]["failed"] == {}
    assert found["curves"]["distance"]["torch"]["largest"] < SAME_CURVE
    page = table.put("a\n<!-- train_x -->\nNot run.\n<!-- end -->\n", "train_x", table.table(out))
    assert "| headway |" in page and "Not run" not in page


@pytest.mark.parametrize(
    ("row", "sides"),
    [
        ("dp 2", {"headway", "ddp", "fsdp2"}),
        ("tp 2", {"headway", "dtensor"}),
        ("pp 2", {"headway", "torch"}),
    ],
)
def test_several_processes_run_on_every_side(tmp_path: Path, row: str, sides: set[str]) -> None:
    found = _run(several, tmp_path / "several.json", "--only", row)["rows"][row]
    assert found["failed"] == {} and set(found["sides"]) == sides


def test_the_executor_is_measured_over_its_theory(tmp_path: Path) -> None:
    found = _run(executor, tmp_path / "executor.json", "--only", "interleaved")
    (row,) = found["rows"].values()
    assert row["failed"] == {} and set(row["sides"]) == {"headway", "torch"}
    assert all(side["over_theory_percent"] > 0 for side in row["sides"].values())


@pytest.mark.parametrize("row", ["buckets", "pieces"])
def test_what_a_step_hides_is_measured_against_one_without_messages(
    tmp_path: Path, row: str
) -> None:
    found = _run(overlap, tmp_path / "overlap.json", "--only", row)
    (row_found,) = found["rows"].values()
    assert row_found["failed"] == {} and len(row_found["sides"]) == 3
    assert len(row_found["sides"]["headway"]["hidden_rounds"]) == 1


def test_what_is_hidden_is_what_a_step_is_not_longer_by() -> None:
    assert overlap.hidden_percent([1.0, 1.05, 1.1], [1.0, 1.0, 1.0], 0.1) == [100.0, 50.0, 0.0]
    assert overlap.hidden_percent([1.0], [], 0.1) == []


def test_the_theory_is_the_one_of_interleaved_schedules() -> None:
    assert executor.theory_s(4, 1, 8, 0.02) == pytest.approx(0.66)
    assert executor.theory_s(4, 2, 8, 0.02) == pytest.approx(0.57)


def test_memory_is_that_of_the_steps_alone(tmp_path: Path) -> None:
    found = _run(memory, tmp_path / "memory.json", "--only", "one process")
    sides = found["rows"]["one process"]["sides"]
    assert set(sides) == {"headway", "torch"}
    for side in sides.values():
        assert side["peak_mib"][0] >= side["libraries_mib"][0] > 50


def test_the_gpu_comparison_runs_dry_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    words = f"""--shape tiny --seq 32 --tokens 128 --device cpu --attention flash --precisions pure
        --rounds 1 --warmup 1 --no-compile --out {out}"""
    assert gpu.main(words.split()) == 0
    found = json.loads(out.read_text())
    assert set(found["sides"]) == {"headway", "torch"} and found["interleaved"]
    assert found["sides"]["headway"]["mfu_full_measured"] > 0


def test_the_gpu_plan_has_a_command_for_each_model_and_length(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert gpu.main(["--plan"]) == 0
    assert capsys.readouterr().out.count("benchmarks.train.gpu --shape") == len(gpu.PLAN)


def test_a_side_that_fails_says_why() -> None:
    options = {"micro": 2, "precision": "fp32", "weights": "/nowhere.pt"}
    spec = Spec("bad", "benchmarks.train.peer_plain:run", SHAPES["tiny"].to_dict(), options=options)
    with team(spec) as side, pytest.raises(SideFailed, match=r"/nowhere\.pt"):
        side.turn(1)


def test_ratios_are_taken_within_a_round() -> None:
    times = {"headway": [1.0, 2.0], "torch": [2.0, 8.0]}
    assert rounds.ratios(times, "headway")["torch"] == {"rounds": [2.0, 4.0], "median": 3.0}
    assert rounds.summary([1.0, 2.0, 4.0], 100)["spread"] == 1.5


def test_only_selects_rows() -> None:
    assert report.parse(["--only", "tp"], "x").wants("tp 2")
    assert not report.parse(["--only", "tp"], "x").wants("dp 2")
