"""The quickest of the fifteen drills,
and proof that the judge of each can find its promise broken."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from headway.controller.faults import fault_effects as effects

from benchmarks.drill import judge
from benchmarks.drill.drills import DRILLS, perform
from benchmarks.drill.means import own_clock, why_not

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("D4", "D7")
INFINITY = float("inf")

LEFT = {"outcome": "stopped", "processes": [], "holders": [], "frozen": []}
GENERATION = {"generation_before": 3, "generation_after": 3}
PIDS = {"pids_before": {0: 7, 1: 8}, "pids_after": {0: 7, 1: 8}}
WELL = {"nodes": {0: "active", 1: "active", 2: "spare"}}
BLAME = [{"name": "verdict", "fields": {"service": "dataloader"}}]
BAD_FILE = [{"name": "snapshot_damaged", "fields": {"reason": "/dev/shm/arena-1.bin is damaged"}}]
GOOD: dict[str, dict[str, Any]] = {
    "D1": {"recovered_s": 9.0, "epoch_before": 1, "epoch_after": 2, "epochs": [1, 1, 2, 2]},
    "D2": {"recovered_s": 1.0, **GENERATION, **WELL, "events": [], "monitors": 1, "listens": True},
    "D3": {"recovered_s": 20.0, "executors": 3},
    "D4": {"recovered_s": 9.0, "source": "durable", "file": "arena-1.bin", "events": BAD_FILE},
    "D5": {"digest": "aa", "reference": "aa", "words": ("damaged",), "events": BAD_FILE},
    "D6": {"recovered_s": 60.0},
    "D7": {"recovered_s": 1.0, "attached": True, **GENERATION, **PIDS},
    "D8": {"recovered_s": 1.0, "events": BLAME, **GENERATION, **PIDS},
    "D9": {"recovered_s": 1.0, "old_worker_lives": True, **GENERATION, **WELL},
    "D10": {"metrics_s": 2.0, "metrics": [0, 1, 2, 3], "clock_moved_s": -119.9},
    "D11": {"recovered_s": 9.0, "source": "arena", "steps_again": 1},
    "D12": {"outcome": "failed", "recoveries": 3,
            "detail": "rank 1 failed: FailpointError", "words": ["FailpointError"]},
    "D13": {"recovered_s": 9.0, "outcome": "failed", "kept": True, "source": "durable",
            "detail": "no node has a usable snapshot and every checkpoint is damaged (step 5)"},
    "D14": {"recovered_s": 9.0, "source": "durable", "events": []},
    "D15": {"recovered_s": 1.0, "steps_meanwhile": 99, "metrics": [0, 1, 2], **GENERATION, **PIDS,
            **WELL},
}  # fmt: skip
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("D1", {"recovered_s": INFINITY}, "not within 30 s"),
    ("D1", {"epoch_after": 1}, "epoch 1 is not above 1"),
    ("D1", {"epochs": [1, 2, 1]}, "old epoch wrote"),
    ("D2", {"generation_after": 4}, "the generation changed from 3 to 4"),
    ("D2", {"nodes": {0: "lost", 1: "active"}}, "nodes {0: 'lost'}"),
    ("D2", {"events": [{"name": "node_lost", "fields": {"node": 1}}]}, "node 1 was lost"),
    ("D2", {"monitors": 2}, "2 monitors"),
    ("D2", {"listens": False}, "no announced monitor listens"),
    ("D2", {"recovered_s": 31.0}, "not within 30 s"),
    ("D3", {"executors": 2}, "2 of 3 executors"),
    ("D3", {"recovered_s": INFINITY}, "not within 45 s"),
    ("D4", {"source": "arena"}, "state came from 'arena'"),
    ("D4", {"events": []}, "no event names arena-1.bin"),
    ("D4", {"recovered_s": 46.0}, "not within 45 s"),
    ("D5", {"digest": "bb"}, "digest bb is not"),
    ("D5", {"events": []}, "no event says that a snapshot was damaged"),
    ("D6", {"recovered_s": 76.0}, "not within 75 s"),
    ("D7", {"pids_after": {0: 7, 1: 9}}, "the workers changed"),
    ("D7", {"generation_after": 4}, "the generation changed"),
    ("D7", {"attached": False}, "never held"),
    ("D8", {"pids_after": {0: 6, 1: 8}}, "the workers changed"),
    ("D8", {"events": []}, "no event names dataloader"),
    ("D9", {"generation_after": 4}, "the old worker of the node still runs"),
    ("D9", {"nodes": {0: "active", 1: "lost"}}, "nodes {1: 'lost'}"),
    ("D9", {"recovered_s": INFINITY}, "not within 45 s"),
    ("D10", {"metrics_s": INFINITY}, "new metrics not within 10 s"),
    ("D10", {"metrics": [0, 1, 3]}, "no metrics of 1 steps: [2]"),
    ("D10", {"clock_moved_s": 0.1}, "the clock moved by 0.1 s"),
    ("D11", {"source": "durable"}, "state came from 'durable'"),
    ("D11", {"steps_again": 2}, "2 steps again"),
    ("D12", {"outcome": ""}, "not failed but running"),
    ("D12", {"recoveries": 9}, "only after 9 recoveries"),
    ("D12", {"detail": "too many crashes"}, "names none of"),
    ("D13", {"outcome": "stopped"}, "not refused by name: stopped"),
    ("D13", {"detail": "out of memory"}, "not refused by name: failed"),
    ("D13", {"kept": False}, "damaged checkpoints were removed"),
    ("D13", {"source": "init"}, "state came from 'init'"),
    ("D13", {"recovered_s": INFINITY}, "not within 60 s"),
    ("D14", {"recovered_s": INFINITY}, "not within 45 s"),
    ("D14", {"source": "init"}, "state came from 'init'"),
    ("D14", {"events": [{"name": "started_over"}]}, "the run started over"),
    ("D15", {"pids_after": {0: 7, 1: 9}}, "the workers changed"),
    ("D15", {"steps_meanwhile": -1}, "no step, or no status"),
    ("D15", {"metrics": [0, 2]}, "no metrics of 1 steps: [1]"),
]


def verdict(name: str, **change: Any) -> list[str]:
    return DRILLS[name].judge({**copy.deepcopy(GOOD[name]), "faulty": True, "left": LEFT, **change})


@pytest.mark.parametrize("name", sorted(DRILLS))
def test_each_judge_accepts_what_keeps_all_promises(name: str) -> None:
    assert verdict(name) == []


@pytest.mark.parametrize(("name", "change", "words"), BROKEN)
def test_each_judge_finds_its_promise_broken(name: str, change: dict[str, Any], words: str) -> None:
    (line,) = verdict(name, **change)
    assert words in line


def test_no_drill_has_a_judge_that_cannot_fail() -> None:
    assert {name for name, _, _ in BROKEN} == set(DRILLS) == set(GOOD)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("D4", {"source": "arena"}, "blames arena-1.bin without a fault"),
        ("D5", {}, "calls a sound snapshot damaged"),
        ("D8", {}, "blames dataloader without a fault"),
        ("D9", {"generation_after": 4, "old_worker_lives": False}, "generation began without"),
        ("D12", {}, "the run ended: failed"),
    ],
)
def test_a_control_with_a_false_alarm_fails(name: str, change: dict[str, Any], words: str) -> None:
    (line,) = verdict(name, faulty=False, **change)
    assert words in line


def test_a_run_that_fails_by_name_over_a_flipped_bit_is_accepted_only_with_the_name() -> None:
    failed = {"left": {**LEFT, "outcome": "failed"}, "digest": ""}
    assert verdict("D5", **failed) == []
    assert verdict("D5", **failed, events=[]) != []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outcome": "does not stop: ..."}, "run does not stop"),
        ({"processes": ["77"]}, "processes left: ['77']"),
        ({"holders": ["78"]}, "holders left: ['78']"),
        ({"frozen": ["headway-fault-1"]}, "frozen left"),
    ],
)
def test_what_is_left_after_a_drill_is_found(change: dict[str, Any], words: str) -> None:
    assert judge.left({"left": LEFT}) == []
    (line,) = judge.left({"left": {**LEFT, **change}})
    assert words in line


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", QUICK)
def test_a_run_survives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := why_not(DRILLS[name].need):
        pytest.skip(reason)
    monkeypatch.chdir(ROOT)
    report, wrong = perform(name, 3)
    assert wrong == [], report


def test_the_clock_of_a_run_moves_and_its_deadlines_hold(tmp_path: Path) -> None:
    import subprocess
    import sys

    if reason := why_not("clock"):
        pytest.skip(reason)
    env = own_clock(tmp_path)
    code = """
import sys, threading, time
print(time.time(), flush=True)
sys.stdin.readline()
begun = time.monotonic()
threading.Event().wait(0.2)
print(time.time(), time.monotonic() - begun, flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    before = float(child.stdout.readline())
    effects.step_clock(Path(env[effects.CLOCK_ENV]))
    answer, _ = child.communicate("\n", timeout=30)
    after, waited = map(float, answer.split())
    assert before - 121 < after < before - 60
    assert 0.2 <= waited < 60
