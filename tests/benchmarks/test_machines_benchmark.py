"""What the judge of the faults of whole machines calls wrong."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.drill.catalogue import faults_at, named
from benchmarks.drill.judge import judge

QUIET = {"given_up_for_cuts": [], "to_blame": []}
GOOD: dict[str, dict[str, Any]] = {
    "lose node": {**QUIET, "generations": [1]},
    "cut_control node": {**QUIET, "trains_on": True, "generations": []},
    "partition node": {**QUIET, "writes_after_fencing": [], "generations": [2]},
    "kill worker": {**QUIET, "generations": [3]},
    "cut_fabric node": {
        "pair_is_named": True, "given_up_for_cuts": [1], "to_blame": [1],
        "writes_after_fencing": [], "generations": [4],
    },
    "cut_fabric pair": {
        "pair_is_named": True, "given_up_for_cuts": [4], "to_blame": [2, 4],
        "writes_after_fencing": [], "generations": [5],
    },
}  # fmt: skip
OF_PROCESSES = [fault.name for fault in faults_at("machines") if fault.cost == "nothing"]
WITH_A_LOSER = [fault.name for fault in faults_at("machines") if fault.fences]
GOOD |= {name: {**QUIET, "generations": []} for name in OF_PROCESSES}
ONE, PAIR = "cut_fabric node", "cut_fabric pair"
ABSENT = object()
WROTE = ["0.10 s: /shared/step-7 by headway.ckpt_store serve"]
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("partition node", {"writes_after_fencing": WROTE}, f"written after the fencing: {WROTE}"),
    (ONE, {"writes_after_fencing": WROTE}, f"written after the fencing: {WROTE}"),
    (PAIR, {"pair_is_named": False}, "no pair is named"),
    ("cut_control node", {"trains_on": False}, "no steps meanwhile"),
    (ONE, {"given_up_for_cuts": []}, "given up for cuts: [], not [1]"),
    (ONE, {"given_up_for_cuts": [2]}, "given up for cuts: [2], not [1]"),
    (ONE, {"given_up_for_cuts": [1, 2]}, "given up for cuts: [1, 2], not [1]"),
    (PAIR, {"given_up_for_cuts": []}, "given up for cuts: [], not [2, 4]"),
    (PAIR, {"given_up_for_cuts": [3]}, "given up for cuts: [3], not [2, 4]"),
    (PAIR, {"given_up_for_cuts": [2, 4]}, "given up for cuts: [2, 4], not [2, 4]"),
    ("kill worker", {"given_up_for_cuts": [1]}, "given up for cuts: [1], not []"),
    *((kind, {"generations": [6]}, "generations [6] began") for kind in OF_PROCESSES),
]
REPORT: dict[str, Any] = {
    "outcome": "finished", "stopped_by": "", "digest": "aa", "num_faults": len(GOOD),
    "missing_steps": [], "epochs": {"events": [1, 2], "inputs": [1, 2]},
}  # fmt: skip
OF_JOURNAL = {
    "events": ({"epochs": {"events": [1, 2, 1]}},
               "events: rows of a former driver follow those of its successor"),
    "inputs": ({"epochs": {"inputs": [2, 1]}},
               "inputs: rows of a former driver follow those of its successor"),
    "metrics": ({"missing_steps": [2, 4]}, "no metrics of 2 steps: [2, 4]"),
    "outcome": ({"outcome": "failed"}, "outcome failed"),
    "digest": ({"digest": "bb"}, "digest bb is not the undisturbed aa"),
}  # fmt: skip


def judged(kind: str = "", change: dict[str, Any] | None = None, **report: Any) -> list[str]:
    """What is wrong in a good report with one row or one of its facts changed."""
    rows = []
    for name, row in GOOD.items():
        fault = named(name)
        facts = {"fault": name, "cost": fault.cost, "fences": fault.fences, **row}
        facts |= (change or {}) if name == kind else {}
        rows.append({key: value for key, value in facts.items() if value is not ABSENT})
    return judge({**REPORT, "faults": rows, **report}, "aa")


def test_a_run_that_keeps_all_promises_is_right() -> None:
    assert judged() == []


@pytest.mark.parametrize(("kind", "change", "complaint"), BROKEN)
def test_a_broken_promise_of_a_fault_is_wrong(
    kind: str, change: dict[str, Any], complaint: str
) -> None:
    assert judged(kind, change) == [f"{kind}: {complaint}"]


@pytest.mark.parametrize(("change", "complaint"), OF_JOURNAL.values(), ids=OF_JOURNAL)
def test_a_journal_with_a_gap_or_an_overtaken_driver_is_wrong(
    change: dict[str, Any], complaint: str
) -> None:
    assert judged(**change) == [complaint]


@pytest.mark.parametrize("kind", [ONE, PAIR, "partition node"])
def test_a_machine_whose_writes_were_not_looked_at_is_wrong(kind: str) -> None:
    found = judged(kind, {"writes_after_fencing": ABSENT})
    assert found == [f"{kind}: what it wrote after the fencing is not known"]


def test_the_judge_knows_the_kinds_by_their_names() -> None:
    assert len(OF_PROCESSES) == 5 and len(WITH_A_LOSER) == 8
