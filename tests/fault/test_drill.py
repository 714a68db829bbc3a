"""A part of ``make drill`` in the normal suite,
and proof that its judge can find a promise broken."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import xxhash
from headway.ckpt_store.client import newest, read_shard

from benchmarks.digest import final_digest
from benchmarks.drill.catalogue import Strike, named
from benchmarks.drill.drilled import recover
from benchmarks.drill.judge import judge
from benchmarks.drill.local import LocalRun
from benchmarks.drill.look import missing_steps
from benchmarks.drill.rig import Rig

ROOT = Path(__file__).resolve().parents[2]
SEED = 3
ROW: dict[str, Any] = {
    "survivors_with_new_pid": [], "nodes": {"0": "active", "1": "spare"},
    "cost": "step",
}  # fmt: skip
GOOD: dict[str, Any] = {
    "run": "drill", "outcome": "finished", "stopped_by": "", "digest": "aa",
    "redone_steps": {"1": 1},
    "faults": [
        {**ROW, "fault": "kill worker [1]", "generations": [1]},
        {**ROW, "fault": "kill driver", "generations": [], "cost": "nothing"},
        {**ROW, "fault": "double workers [1, 2]", "generations": [2, 3]}],
    "num_faults": 3, "degraded": [], "missing_steps": [],
    "epochs": {"events": [1, 2], "inputs": [1, 2]},
    "witness": "rank 0",
    "resources": {"rank 0": [{"age_s": 9.0, "fds": 30, "threads": 9,
                              "anonymous_kib": 100 << 10}] * 8},
}  # fmt: skip


@pytest.mark.timeout(600)
def test_a_run_recovers_from_every_kind_of_fault_to_the_bits_of_an_undisturbed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disturbed run goes on until the last fault is mended;
    then an undisturbed one makes as many steps."""
    monkeypatch.chdir(ROOT)
    strikes = [
        Strike(named("kill worker at snapshot.mid_seal"), (1,)),
        Strike(named("kill ckpt_store at store.mid_manifest")),
        Strike(named("stop worker"), (0,)),
        Strike(named("kill driver")),
        Strike(named("double executor"), (1,)),
        Strike(named("lose node")),
    ]
    with Rig() as rig:
        run = rig.launch("drill")
        place = LocalRun(run, SEED)
        rows = [recover(place, strike) for strike in strikes]
        settled = place.settle(len(strikes))
        left = rig.finish(run)
        missing = missing_steps(run)
        found = newest(run.folder.checkpoints)
        assert found is not None
        one_node = ("launch.nodes=1", "launch.ranks_per_node=2", "launch.spares=0")
        other = rig.launch("undisturbed", *one_node, steps=found.step)
        assert other.wait(timeout_s=300) == "finished"
        report = {
            **GOOD,
            "faults": rows,
            "num_faults": len(strikes),
            "redone_steps": settled["redone_steps"],
            "degraded": settled["degraded"],
            "missing_steps": missing,
            "digest": _digest(run),
        }
        assert judge(report, final_digest(other)) == [], settled["aftermath"]
        assert left["outcome"] == "stopped"
        assert left["processes"] == []
    generations = [row["generations"] for row in rows]
    assert generations[0] == [1]
    assert generations[1] == generations[3] == [], (
        "the death of a daemon or the driver begins no generation"
    )
    assert all(generations[k] for k in (2, 4, 5))


def _digest(run: Any) -> str:
    """As ``final_digest``, of a run that was stopped before its configured end."""
    digest = xxhash.xxh3_128()
    for rank in range(run.config.parallel.world_size):
        digest.update(read_shard(newest(run.folder.checkpoints), rank)[0])
    return digest.hexdigest()


def _judge(change: dict[str, Any], reference: str = "aa") -> list[str]:
    return judge({**copy.deepcopy(GOOD), **change}, reference)


def test_the_judge_accepts_a_report_that_keeps_all_promises() -> None:
    assert _judge({}) == []


def test_the_judge_refuses_another_digest() -> None:
    assert _judge({}, reference="bb") == ["digest aa is not the undisturbed bb"]


def test_the_judge_refuses_a_survivor_with_a_new_pid() -> None:
    rows = copy.deepcopy(GOOD["faults"])
    rows[1]["survivors_with_new_pid"] = [0]
    assert _judge({"faults": rows}) == ["kill driver: ranks [0] changed pid"]


def test_the_judge_refuses_two_steps_done_again() -> None:
    (line,) = _judge({"redone_steps": {"1": 1, "3": 2}})
    assert line == "double workers [1, 2]: completed steps done again [0, 2]"


def test_the_judge_allows_only_the_loss_of_a_node_a_longer_way_back() -> None:
    lost = {**ROW, "fault": "lose node", "generations": [4], "cost": "checkpoint"}
    change = {"faults": [*GOOD["faults"], lost], "num_faults": 4}
    assert _judge({**change, "redone_steps": {"1": 1, "4": 4}}) == []
    assert _judge({**change, "redone_steps": {"1": 2, "4": 4}}) != []


def test_the_judge_refuses_a_generation_begun_by_the_death_of_a_service() -> None:
    rows = copy.deepcopy(GOOD["faults"])
    rows[1]["generations"] = [2]
    assert _judge({"faults": rows}) == ["kill driver: generations [2] began"]


def test_the_judge_refuses_a_node_that_is_not_back_after_a_fault() -> None:
    rows = copy.deepcopy(GOOD["faults"])
    rows[0]["nodes"] = {"0": "active", "1": "lost"}
    assert _judge({"faults": rows}) == ["kill worker [1]: nodes {'1': 'lost'} afterwards"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"degraded": ["2 processes of monitor"]}, "2 processes of monitor"),
        ({"missing_steps": [7]}, "no metrics of 1 steps: [7]"),
        ({"epochs": {"events": [1, 2, 1]}}, "events: rows of a former driver follow"),
        ({"num_faults": 4}, "only 3 of 4 faults"),
        ({"stopped_by": "freeze driver: not healthy"}, "stopped by freeze driver"),
    ],
)
def test_the_judge_refuses_what_is_degraded_or_was_not_done(
    change: dict[str, Any], words: str
) -> None:
    (line,) = _judge(change)
    assert words in line


@pytest.mark.parametrize(("key", "step"), [("fds", 1), ("threads", 1), ("anonymous_kib", 5 << 10)])
def test_the_judge_refuses_a_witness_that_grows_a_little_with_every_fault(
    key: str, step: int
) -> None:
    good = GOOD["resources"]["rank 0"][0]
    rows = [{**good, key: good[key] + step * number} for number in range(11)]
    (line,) = _judge({"resources": {"rank 0": rows}})
    assert f"rank 0: {key} grew" in line


def test_the_judge_lets_a_service_open_what_it_needs_while_it_starts() -> None:
    good = GOOD["resources"]["rank 0"][0]
    starting = [{"age_s": 2.0, "fds": 3, "threads": 1, "anonymous_kib": 9 << 10}] * 3
    resources = {**GOOD["resources"], "ckpt_store 1": [*starting, *[good] * 5]}
    assert _judge({"resources": resources}) == []
    resources["ckpt_store 1"] = [{**row, "age_s": 9.0} for row in resources["ckpt_store 1"]]
    assert "ckpt_store 1: fds grew from 3 to 30" in _judge({"resources": resources})


def test_the_judge_wants_the_witness_watched_to_the_end() -> None:
    few = GOOD["resources"]["rank 0"][:3]
    (line,) = _judge({"resources": {"rank 0": few}})
    assert "not watched" in line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"first_step_s": 13.0}, "all ranks stepping not within 12 s"),
        ({"generations": [1, 2]}, "generations [1, 2] began, not one"),
    ],
)
def test_the_judge_holds_a_stopped_node_to_its_limit(change: dict[str, Any], words: str) -> None:
    row = {**ROW, "fault": "stop node", "cost": "checkpoint", "limit_s": 12.0, "generations": [1]}
    good = {**row, "first_step_s": 3.0}
    assert _judge({"faults": [good], "num_faults": 1}) == []
    assert _judge({"faults": [{**good, **change}], "num_faults": 1}) == [f"stop node: {words}"]
    assert "not within 12 s" in _judge({"faults": [row], "num_faults": 1})[0]


def test_the_judge_refuses_a_run_that_did_not_finish() -> None:
    assert _judge({"outcome": "stopped"}) == ["outcome stopped"]
