"""What steps would take without stragglers, on played pipelines whose answer is known."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from headway.common.errors import InputError
from headway.common.plan.grid import Grid
from headway.console.analysis.own_steps import own_steps
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


def actions(slow: dict[int, float]) -> pl.DataFrame:
    """Two stages and two replicas, as ``step_actions`` gives them: receives only wait, sends only
    send, and a reduction is issued before it is waited for. Milliseconds."""
    rows: list[dict[str, object]] = []

    def add(rank: int, action: str, start: float, end: float, **more: object) -> None:
        rows.append({
            "rank": rank, "generation": 0, "step": 3, "action": action, "chunk": 0,
            "micro_batch": -1, "waiting": False, "has_peers": False, "pp_rank": rank // 2,
            "dp_rank": rank % 2, "tp_rank": 0, "sequence": len(rows), "start_ns": int(start * 1e6),
            "end_ns": int(end * 1e6), "own_ns": int((end - start) * 1e6), **more,
        })  # fmt: skip

    ends = {}
    for replica in (0, 1):
        clock, sent = 0.0, {}
        for number in (0, 1):
            took = 10 * slow.get(replica, 1.0)
            add(replica, "FORWARD", clock, clock + took, micro_batch=number)
            clock = sent[number] = clock + took
            add(replica, "SEND_FORWARD", clock, clock, micro_batch=number, has_peers=True)
        ends[replica], clock = clock, 0.0
        for number in (0, 1):
            arrives = max(clock, sent[number] + 1)
            add(2 + replica, "RECV_FORWARD", clock, arrives, micro_batch=number, waiting=True,
                has_peers=True)  # fmt: skip
            took = 10 * slow.get(2 + replica, 1.0)
            add(2 + replica, "FORWARD", arrives, arrives + took, micro_batch=number)
            clock = arrives + took
        ends[2 + replica] = clock
    for rank, end in ends.items():
        last = max(ends[rank // 2 * 2], ends[rank // 2 * 2 + 1])
        add(rank, "REDUCE_SCATTER", end, end, has_peers=True)
        add(rank, "REDUCE_SCATTER", end, last + 5, has_peers=True, waiting=True)
        add(rank, "NORM", last + 5, max(ends.values()) + 7, has_peers=True)
    return pl.DataFrame(rows)


def test_the_steps_of_a_run_are_replayed_from_its_records() -> None:
    grid = Grid(tp=1, pp=2, dp=2)
    found = what_if(own_steps(actions({}), grid).values())
    assert found.seconds == pytest.approx(0.001 * (10 + 1 + 20 + 5 + 2))
    assert found.slowdown == pytest.approx(1.0)
    found = what_if(own_steps(actions({3: 3.0}), grid).values())
    assert found.seconds == pytest.approx(0.001 * (10 + 1 + 60 + 5 + 2))
    assert found.cause.startswith("rank 3 is slow")


def test_a_message_whose_receive_was_not_recorded_holds_nothing_up() -> None:
    rows = actions({}).filter(~((pl.col("rank") == 2) & (pl.col("action") == "RECV_FORWARD")))
    [step] = own_steps(rows, Grid(tp=1, pp=2, dp=2)).values()
    assert replay(step, lambda one: one.seconds) > 0
