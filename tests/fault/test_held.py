"""A rank that is held in a forward is the one that is ended, not the peer that waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.health.client import verdicts_of

from benchmarks.drill.catalogue import Strike, named
from benchmarks.drill.drilled import recover
from benchmarks.drill.judge import of_fault
from benchmarks.drill.local import LocalRun
from benchmarks.drill.rig import Rig

LAYOUT = (
    "parallel.tp=2", "parallel.pp=1", "launch.nodes=1", "launch.ranks_per_node=2",
    "launch.spares=0", "recovery.hang_act_s=3",
)  # fmt: skip


@pytest.mark.timeout(300)
def test_of_two_tensor_parallel_ranks_the_held_one_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real run, since only there a peer waits in a collective inside of its own forward."""
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    strike = Strike(named("hold worker at worker.in_layer"), (1,))
    with Rig() as rig:
        run = rig.launch("held", *LAYOUT)
        row = recover(LocalRun(run, 0), strike)
        verdicts = verdicts_of(run.folder.verdicts.parent)
        rig.finish(run)
    assert row["blamed"] == [1] == row["missing"]
    assert of_fault(row, {}) == []
    [verdict] = [one for one in verdicts if one.kind == "silence"]
    shown = {one.name: one.value for one in verdict.evidence}
    assert shown["why"].startswith("it never began operation ")
    assert "failpoints.py" in shown["where"], "its own stack"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"blamed": [0, 1]}, "ranks [0, 1] were named, not [1]"),
        ({"blamed": []}, "ranks [] were named, not [1]"),
        ({"missing": [0]}, "ranks [0] had not entered, not [1]"),
        ({"blamed_nodes": [0]}, "nodes [0] were called silent or replaced"),
        ({"generations": [1, 2]}, "generations [1, 2] began, not one"),
        ({"survivors_with_new_pid": [0]}, "ranks [0] changed pid"),
    ],
)
def test_whoever_else_is_named_or_replaced_is_found(change: dict[str, object], words: str) -> None:
    good = {"cost": "step", "ranks": [1], "blamed": [1], "blamed_nodes": [], "generations": [1]}
    assert of_fault(good, {}) == []
    assert of_fault({**good, **change}, {}) == [words]
