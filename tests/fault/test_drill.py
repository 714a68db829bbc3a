"""A part of ``make drill`` in the normal suite, and proof that its judge can find a promise broken."""

from __future__ import annotations

import copy
from typing import Any

import pytest

SHAPE = ("model.layers=2", "model.hidden=64", "model.heads=4", "model.seq_len=64", "model.vocab_size=512",
         "train.dtype=fp32", "train.eval_batches=1", "train.eval_every=0", "train.sample_tokens=0",
         "parallel.pp=2", "parallel.dp=1", "launch.nodes=2", "launch.ranks_per_node=1", "launch.spares=1",
         "launch.standbys=1", "train.global_batch_size=8", "ckpt.durable_every=5",
         "optim.lr=1e-3", "optim.min_lr=1e-3", "optim.warmup_steps=1")  # fmt: skip
SEED = 3
GOOD = {
    "run": "drill", "outcome": "finished", "digest": "aa", "redone_steps": {"1": 1},
    "faults": [
        {"fault": "kill worker [1]", "target": "worker", "survivors_with_new_pid": [], "generations": [1]},
        {"fault": "kill driver", "target": "driver", "survivors_with_new_pid": [], "generations": []},
        {"fault": "double workers [1, 2]", "target": "workers", "survivors_with_new_pid": [], "generations": [2, 3]}],
    "witness": "rank 0",
    "resources": {"rank 0": [{"age_s": 9.0, "fds": 30, "threads": 9, "anonymous_kib": 100 << 10}] * 8},
}  # fmt: skip


@pytest.mark.timeout(600)
def test_a_run_recovers_from_every_kind_of_fault_to_the_bits_of_an_undisturbed_one(
    here: Any,
) -> None:
    """The disturbed run goes on until the last fault is mended; then an undisturbed one makes as many steps."""
    from headway.ckpt_store.client import newest
    from headway.console.analysis.events import load_events, redone_steps
    from headway.console.cluster import Cluster

    from benchmarks.drill import CONFIG, judge, strike_and_recover, undisturbed_run
    from benchmarks.faults import Fault, Striker, healthy

    faults = [
        Fault("kill", "worker", "snapshot.mid_seal", (1,)),
        Fault("kill", "ckpt_store", "store.mid_manifest"),
        Fault("stop", "worker", ranks=(0,)),
        Fault("kill", "driver"),
        Fault("double", "executor", ranks=(1,)),
        Fault("lose", "node"),
    ]
    cluster, overrides = Cluster(here.runs), [*SHAPE, f"data.path={here.corpus}"]
    run = cluster.launch(CONFIG, [*overrides, "train.steps=1000000"], name="drill")
    healthy(run, beyond_step=2)
    striker = Striker(run, SEED)
    rows = [strike_and_recover(run, striker, fault) for fault in faults]
    redone = {
        str(row["generation"]): row["num_steps"]
        for row in redone_steps(load_events(run.folder.path)).to_dicts()
    }
    run.stop()
    assert run.wait(timeout_s=120) == "stopped"
    found = newest(run.folder.checkpoints)
    assert found is not None
    reference = undisturbed_run(cluster, "undisturbed", [*overrides, f"train.steps={found.step}"])

    report = {**GOOD, "faults": rows, "redone_steps": redone, "digest": _digest(run)}
    assert judge(report, reference) == []
    assert [row["fault"] for row in rows] == [str(fault) for fault in faults]
    generations = [row["generations"] for row in rows]
    assert generations[0] == [1]
    assert generations[1] == generations[3] == [], (
        "the death of a daemon or the driver begins no generation"
    )
    assert all(generations[k] for k in (2, 4, 5))
    here.assert_clean("undisturbed", "drill")


def _digest(run: Any) -> str:
    """As ``final_digest``, of a run that was stopped before its configured end."""
    import xxhash
    from headway.ckpt_store.client import newest, read_shard

    digest = xxhash.xxh3_128()
    for rank in range(run.config.parallel.world_size):
        digest.update(read_shard(newest(run.folder.checkpoints), rank)[0])
    return digest.hexdigest()


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
    (line,) = _judge({"redone_steps": {"1": 1, "3": 2}})
    assert line == "double workers [1, 2]: completed steps done again [0, 2]"


def test_the_judge_allows_only_the_loss_of_a_node_a_longer_way_back() -> None:
    lost = {
        "fault": "lose node",
        "target": "node",
        "survivors_with_new_pid": [],
        "generations": [4],
    }
    rows = [*GOOD["faults"], lost]  # type: ignore[misc]
    assert _judge({"faults": rows, "redone_steps": {"1": 1, "4": 4}}) == []
    assert _judge({"faults": rows, "redone_steps": {"1": 2, "4": 4}}) != []


@pytest.mark.parametrize(("key", "step"), [("fds", 1), ("threads", 1), ("anonymous_kib", 5 << 10)])
def test_the_judge_refuses_a_witness_that_grows_a_little_with_every_fault(
    key: str, step: int
) -> None:
    good = GOOD["resources"]["rank 0"][0]  # type: ignore[index]
    rows = [{**good, key: good[key] + step * number} for number in range(11)]
    (line,) = _judge({"resources": {"rank 0": rows}})
    assert f"rank 0: {key} grew" in line


def test_the_judge_lets_a_service_open_what_it_needs_while_it_starts() -> None:
    good = GOOD["resources"]["rank 0"][0]  # type: ignore[index]
    starting = [{"age_s": 2.0, "fds": 3, "threads": 1, "anonymous_kib": 9 << 10}] * 3
    resources = {**GOOD["resources"], "ckpt_store 1": [*starting, *[good] * 5]}  # type: ignore[dict-item]
    assert _judge({"resources": resources}) == []
    resources["ckpt_store 1"] = [{**row, "age_s": 9.0} for row in resources["ckpt_store 1"]]
    assert "ckpt_store 1: fds grew from 3 to 30" in _judge({"resources": resources})


def test_the_judge_wants_the_witness_watched_to_the_end() -> None:
    few = GOOD["resources"]["rank 0"][:3]  # type: ignore[index]
    (line,) = _judge({"resources": {"rank 0": few}})
    assert "not watched" in line


def test_the_judge_refuses_a_run_that_did_not_finish() -> None:
    assert _judge({"outcome": "stopped"}) == ["outcome stopped"]
