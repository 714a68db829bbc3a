"""A part of ``make drill`` in the normal suite, and proof that its judge can find a promise broken."""

from __future__ import annotations

import copy
from typing import Any

import pytest

SHAPE = ("model.layers=2", "model.hidden=64", "model.heads=4", "model.seq_len=64", "model.vocab_size=512",
         "train.dtype=fp32", "train.eval_batches=1", "train.eval_every=0", "train.sample_tokens=0",
         "parallel.pp=2", "parallel.dp=1", "launch.nodes=2", "launch.ranks_per_node=1", "launch.spares=1",
         "launch.standbys=1", "train.global_batch_size=16", "train.steps=400", "ckpt.durable_every=5")  # fmt: skip
SEED = 3
GOOD = {
    "run": "drill", "outcome": "finished", "digest": "aa", "redone_steps": [1, 0, 1],
    "faults": [{"fault": "kill worker [1]", "target": "worker", "survivors_with_new_pid": []},
               {"fault": "kill driver", "target": "driver", "survivors_with_new_pid": []}],
}  # fmt: skip


@pytest.mark.timeout(600)
def test_a_run_recovers_from_every_kind_of_fault_to_the_bits_of_an_undisturbed_one(here: Any) -> None:
    from headway.console.cluster import Cluster

    from benchmarks.drill import disturbed_run, judge, undisturbed_run
    from benchmarks.faults import Fault

    cluster, overrides = Cluster(here.runs), [*SHAPE, f"data.path={here.corpus}"]
    reference = undisturbed_run(cluster, "undisturbed", overrides)
    faults = [
        Fault("kill", "worker", "snapshot.mid_seal", (1,)),
        Fault("kill", "ckpt_store", "store.mid_manifest"),
        Fault("stop", "worker", ranks=(0,)),
        Fault("kill", "driver"),
        Fault("double", "executor", ranks=(1,)),
        Fault("lose", "node"),
    ]
    report = disturbed_run(cluster, "drill", overrides, faults, SEED)
    assert judge(report, reference) == []
    assert len(report["faults"]) == len(faults)
    # Faults that end a worker begin a generation; the deaths of a daemon and of the driver do not.
    assert [row["generation"] for row in report["faults"]] == [1, 1, 2, 2, 3, 4]
    assert [row["fault"] for row in report["faults"] if row["failpoint"]] == [str(f) for f in faults[:2]]
    here.assert_clean("undisturbed", "drill")


def _judge(change: dict[str, Any], reference: str = "aa") -> list[str]:
    from benchmarks.drill import judge

    return judge({**copy.deepcopy(GOOD), **change}, reference)


def test_the_judge_accepts_a_report_that_keeps_all_promises() -> None:
    assert _judge({}) == []


def test_the_judge_refuses_another_digest() -> None:
    assert _judge({}, reference="bb") == ["digest aa is not the undisturbed bb"]


def test_the_judge_refuses_a_survivor_with_a_new_pid() -> None:
    rows: list[dict[str, Any]] = copy.deepcopy(GOOD["faults"])  # type: ignore[arg-type]
    rows[1]["survivors_with_new_pid"] = [0]
    assert _judge({"faults": rows}) == ["kill driver: ranks [0] changed pid"]


def test_the_judge_refuses_two_steps_done_again() -> None:
    (line,) = _judge({"redone_steps": [1, 2, 0]})
    assert "done again" in line


def test_the_judge_allows_the_loss_of_a_node_one_longer_way_back_and_no_second() -> None:
    rows = [*GOOD["faults"], {"fault": "lose node", "target": "node", "survivors_with_new_pid": []}]  # type: ignore[misc]
    assert _judge({"faults": rows, "redone_steps": [1, 0, 4]}) == []
    assert _judge({"faults": rows, "redone_steps": [2, 0, 4]}) != []


def test_the_judge_refuses_a_run_that_did_not_finish() -> None:
    assert _judge({"outcome": "stopped"}) == ["outcome stopped"]
