"""What the judge of the faults of whole machines calls wrong."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.machine_faults import OF_PROCESSES, WITH_A_LOSER, Faults
from benchmarks.machines import judge

STEPS = 6
QUIET = {"given_up_for_cuts": [], "to_blame": []}
GOOD: dict[str, dict[str, Any]] = {
    "power off a machine that trains": {**QUIET, "generations": (0, 1)},
    "cut control of another machine": {**QUIET, "trains_on": True, "generations": (1, 1)},
    "partition of another machine": {**QUIET, "writes_after_fencing": [], "generations": (1, 2)},
    "kill a worker": {**QUIET, "generations": (2, 3)},
    "cut the fabric of a machine": {
        "pair_is_named": True, "given_up_for_cuts": [1], "to_blame": [1],
        "writes_after_fencing": [], "generations": (3, 4),
    },
    "cut the fabric between two machines": {
        "pair_is_named": True, "given_up_for_cuts": [4], "to_blame": [2, 4],
        "writes_after_fencing": [], "generations": (4, 5),
    },
    **{kind: {**QUIET, "generations": (5, 5)} for kind in OF_PROCESSES},
}  # fmt: skip
ONE, PAIR = "cut the fabric of a machine", "cut the fabric between two machines"
ABSENT = object()
WROTE = ["0.10 s: /shared/step-7 by headway.ckpt_store serve"]
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("partition of another machine", {"writes_after_fencing": WROTE},
     f"written after the fencing: {WROTE}"),
    (ONE, {"writes_after_fencing": WROTE}, f"written after the fencing: {WROTE}"),
    (PAIR, {"pair_is_named": False}, "no pair is named"),
    ("cut control of another machine", {"trains_on": False}, "no steps meanwhile"),
    (ONE, {"given_up_for_cuts": []}, "given up for cuts: [], not [1]"),
    (ONE, {"given_up_for_cuts": [2]}, "given up for cuts: [2], not [1]"),
    (ONE, {"given_up_for_cuts": [1, 2]}, "given up for cuts: [1, 2], not [1]"),
    (PAIR, {"given_up_for_cuts": []}, "given up for cuts: [], not [2, 4]"),
    (PAIR, {"given_up_for_cuts": [3]}, "given up for cuts: [3], not [2, 4]"),
    (PAIR, {"given_up_for_cuts": [2, 4]}, "given up for cuts: [2, 4], not [2, 4]"),
    ("kill a worker", {"given_up_for_cuts": [1]}, "given up for cuts: [1], not []"),
    *((kind, {"generations": (5, 6)}, "generation 6 began, which it must not")
      for kind in OF_PROCESSES),
]  # fmt: skip
JOURNAL: dict[str, Any] = {
    "outcome": "finished", "events": [1, 1, 2], "inputs": [1, 2, 2], "metrics": range(STEPS),
}  # fmt: skip
OF_JOURNAL = {
    "events": ([1, 2, 1], "events: rows of a former driver follow those of its successor"),
    "inputs": ([2, 1], "inputs: rows of a former driver follow those of its successor"),
    "metrics": ([0, 1, 3, 5], "no metrics of 2 steps: [2, 4]"),
    "outcome": ("failed", "outcome 'failed'"),
}


def judged(kind: str = "", change: dict[str, Any] | None = None, **journal: Any) -> list[str]:
    """What is wrong in a good report with one row or one part of the journal changed."""
    found = {**JOURNAL, **journal}
    rows = []
    for name, row in GOOD.items():
        changed = {"fault": name, **row, **((change or {}) if name == kind else {})}
        rows.append({key: value for key, value in changed.items() if value is not ABSENT})

    def query(_run: object, sql: str) -> list[tuple[int]]:
        return [(value,) for value in found[sql.split()[3]]]

    run: Any = SimpleNamespace(outcome=found["outcome"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.machines.query", query)
        return judge(run, rows, STEPS)


def test_a_run_that_keeps_all_promises_is_right() -> None:
    assert judged() == []


@pytest.mark.parametrize(("kind", "change", "complaint"), BROKEN)
def test_a_broken_promise_of_a_fault_is_wrong(
    kind: str, change: dict[str, Any], complaint: str
) -> None:
    assert judged(kind, change) == [f"{kind}: {complaint}"]


@pytest.mark.parametrize(("part", "value", "complaint"), [(k, *v) for k, v in OF_JOURNAL.items()])
def test_a_journal_with_a_gap_or_an_overtaken_driver_is_wrong(
    part: str, value: Any, complaint: str
) -> None:
    assert judged(**{part: value}) == [complaint]


@pytest.mark.parametrize("kind", [ONE, PAIR, "partition of another machine"])
def test_a_machine_whose_writes_were_not_looked_at_is_wrong(kind: str) -> None:
    found = judged(kind, {"writes_after_fencing": ABSENT})
    assert found == [f"{kind}: what it wrote after the fencing is not known"]


def test_the_judge_knows_the_kinds_by_their_names() -> None:
    source = inspect.getsource(Faults.__init__)
    assert [kind for kind in (*GOOD, *WITH_A_LOSER) if f'"{kind}": ' not in source] == []
