"""What steps would take without stragglers, on played pipelines whose answer is known."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from headway.common.errors import InputError
from headway.console.analysis.replay import Operation, UnfinishedError, replay
from headway.console.analysis.step_traces import read_steps
from headway.console.analysis.what_if import what_if

STAGES, MICRO_BATCHES, REPLICAS = 2, 4, 3


def trace(path: Path, slow: dict[tuple[int, int], float], steps: int = 3) -> Path:
    """Forward passes alone through a pipeline, which then sums up over its replicas."""
    rows = []
    for step in range(steps):
        arrives = {replica: [0.0] * MICRO_BATCHES for replica in range(REPLICAS)}
        for stage in range(STAGES):
            ends = {}
            for replica in range(REPLICAS):
                rank, clock = stage * REPLICAS + replica, 0.0
                place = {"dp_rank": replica, "stage": stage, "rank": rank, "step": step, "mc": 0}

                def add(kind: str, number: int, start: float, end: float, at=place) -> None:  # type: ignore[no-untyped-def]
                    rows.append(at | {"optype": kind, "seq_id": number, "start_ts": start,
                                      "duration": end - start})  # fmt: skip

                for number in range(MICRO_BATCHES):
                    if stage:
                        add("forward-recv", number, clock, max(clock, arrives[replica][number]))
                        clock = max(clock, arrives[replica][number])
                    took = 1.0 * slow.get((stage, replica), 1.0)
                    add("forward-compute", number, clock, clock + took)
                    clock += took
                    if stage < STAGES - 1:
                        add("forward-send", number, clock, clock)
                        arrives[replica][number] = clock
                ends[replica] = clock
            for replica, clock in ends.items():
                place = {"dp_rank": replica, "stage": stage, "rank": stage * REPLICAS + replica}
                rows.append(place | {"step": step, "mc": 0, "optype": "grads-reduce-scatter",
                                     "seq_id": 0, "start_ts": clock,
                                     "duration": max(ends.values()) - clock + 0.5})  # fmt: skip
    pl.DataFrame(rows).write_parquet(path)
    return path


def test_a_healthy_job_loses_nothing(tmp_path: Path) -> None:
    found = what_if(read_steps(trace(tmp_path / "a.parquet", {})).values())
    assert found.slowdown == pytest.approx(1.0)
    assert found.seconds == pytest.approx(MICRO_BATCHES + STAGES - 1 + 0.5)
    assert found.cause == "there are no stragglers that matter"


def test_a_slow_rank_is_named_with_what_it_costs(tmp_path: Path) -> None:
    found = what_if(read_steps(trace(tmp_path / "a.parquet", {(1, 2): 2.0})).values())
    assert found.seconds == pytest.approx(1 + 2.0 * MICRO_BATCHES + 0.5)
    mean = (2.0 + 5 * 1.0) / 6
    assert found.ideal_seconds == pytest.approx((MICRO_BATCHES + STAGES - 1) * mean + 0.5)
    assert found.cause.startswith("rank 5 is slow: 1"), found
    assert found.by_stage[0] < 0.1


def test_a_stage_with_more_to_do_is_told_from_a_slow_rank(tmp_path: Path) -> None:
    slow = dict.fromkeys([(1, replica) for replica in range(REPLICAS)], 2.0)
    found = what_if(read_steps(trace(tmp_path / "a.parquet", slow)).values())
    assert found.cause.startswith("stage 1 has more to do than others"), found
    assert max(found.by_rank.values()) < 0.5


def test_a_replay_whose_other_end_is_missing_is_refused() -> None:
    sends = [[Operation("forward-send", 0, 0, 0.1, ("forward", 0))]]
    waits = [[Operation("forward-recv", 1, 1, 0.1, ("forward", 1))],
             [Operation("forward-recv", 1, 1, 0.1, ("forward", 0))]]  # fmt: skip
    later = [[Operation("forward-recv", 2, 1, 0.1, ("forward", 0))],
             [Operation("forward-recv", 2, 1, 0.1, ("forward", 1))]]  # fmt: skip
    with pytest.raises(UnfinishedError, match="wait for operations"):
        replay({0: sends, 1: waits, 2: later}, lambda one: one.seconds)


@pytest.mark.parametrize("content", ["no parquet", "lacks"])
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.parquet"
    if content == "lacks":
        pl.DataFrame({"rank": [1], "step": [2]}).write_parquet(path)
    else:
        path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"cannot be read|it lacks dp_rank"):
        read_steps(path)
