"""Every second of every rank has one cause: the ledger, lost time, slow steps."""

from __future__ import annotations

import polars as pl
import pytest
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.causes import (
    BELOW_PEAK,
    MFU,
    lost_time,
    model_flops_share,
)
from headway.console.analysis.slowest import slow_steps, step_time_quantiles
from headway.console.analysis.time_ledger import COLUMNS, WHOLE_STEP, ledger, pauses
from headway.console.testing import Row, events_of
from headway.controller.client import JournalEvent
from hypothesis import given, settings
from hypothesis import strategies as st


def cause_shares(table: pl.DataFrame) -> dict[str, float]:
    """Cause -> share; they add up to 1."""
    assert table["share"].sum() == pytest.approx(1.0, abs=1e-12)
    return dict(table.select("cause", "share").iter_rows())


def step(number: int, start: float, *, compute: float = 6.0, length: float = 10.0) -> list[Row]:
    """1 ms of data, then compute; the rest is not recorded."""
    return [
        (Kind.STEP, number, start, start + length),
        (Kind.DATA, number, start, start + 1),
        (Kind.FORWARD, number, start + 1, start + 1 + compute),
    ]


def test_overlapping_records_are_counted_once() -> None:
    rows = [(Kind.STEP, 0, 0, 20), (Kind.FORWARD, 0, 0, 10), (Kind.BACKWARD, 0, 5, 12),
            (Kind.DATA, 0, 6, 8)]  # fmt: skip
    (row,) = ledger(events_of(0, *rows), Grid()).to_dicts()
    assert row["compute"] == pytest.approx(0.012) and row["data"] == 0.0
    assert row["unrecorded"] == pytest.approx(0.008)


def test_the_time_between_steps_has_a_cause() -> None:
    before = [*step(0, 0), *step(1, 10), (Kind.EVAL, 2, 21, 26), *step(2, 30), *step(3, 100)]
    # the run breaks in step 4, recovers and does step 3 again; later it is stopped for a second
    again = [*step(3, 200), *step(4, 210), *step(5, 225)]
    resumed = [*step(6, 1300)]
    events = pl.concat(
        [
            events_of(0, *before),
            events_of(0, *again, generation=1),
            events_of(0, *resumed, generation=2),
        ]
    )
    rows = ledger(events, Grid(), recoveries=[(0.120, 0.205)], pauses=[(0.050, 0.090)])
    assert rows["total"].sum() == pytest.approx(1.310)
    sums = {name: rows[name].sum() * 1e3 for name in COLUMNS}
    assert sums["evaluation"] == pytest.approx(5)
    assert sums["paused"] == pytest.approx(40)
    # 90 ms from the end of the old step 3 to its repetition, and the old step with all before it
    assert sums["recovery"] == pytest.approx(90 + 10)
    assert sums["stopped"] == pytest.approx(1300 - 235)
    assert sums["between"] == pytest.approx((30 - 20 - 5) + (60 - 40) + 5)
    assert rows.filter(~pl.col("is_kept")).select("generation", "step").rows() == [(0, 3)]
    assert sums["compute"] == pytest.approx(7 * 6) and sums["data"] == pytest.approx(7)
    assert sums["unrecorded"] == pytest.approx(7 * 3) and sums["warm_up"] == 0
    shares = cause_shares(lost_time(rows))
    assert shares[COLUMNS["recovery"]] == pytest.approx(100 / 1310)


def test_a_first_step_that_was_broken_off_and_its_recovery_count() -> None:
    broken = events_of(0, (Kind.STEP, 0, 0, 40)).with_columns(broken=True)
    again = events_of(0, *step(0, 100), *step(1, 110), generation=1)
    rows = ledger(pl.concat([broken, again]), Grid(), recoveries=[(0.040, 0.115)])
    assert rows["total"].sum() == pytest.approx(0.120)
    assert rows["recovery"].to_list() == pytest.approx([0.100, 0])
    assert rows["step"].to_list() == [0, 1] and rows["is_kept"].all()


def test_the_first_step_of_a_start_is_cut_down_to_a_usual_one() -> None:
    first = [*step(0, 0, compute=60, length=100)]
    rows = ledger(
        pl.concat(
            [
                events_of(0, *first, *step(1, 100), *step(2, 110)),
                events_of(0, *step(3, 140, compute=30, length=50), *step(4, 190), generation=1),
            ]
        ),
        Grid(),
        recoveries=[(0.121, 0.191)],
    )
    assert rows["warm_up"].to_list() == pytest.approx([0.090, 0, 0, 0, 0])
    assert rows["recovery"].to_list() == pytest.approx([0, 0, 0, 0.020 + 0.040, 0])
    inside = rows.select(pl.sum_horizontal(*WHOLE_STEP))["compute"]
    assert inside.to_list() == pytest.approx([0.01] * 5)
    assert rows["total"].sum() == pytest.approx(0.200)


@settings(max_examples=40)
@given(data=st.data())
def test_a_ledger_covers_the_time_from_the_first_step_to_the_last(data: st.DataObject) -> None:
    parts, ends = [], {}
    for rank in range(data.draw(st.integers(1, 3))):
        at = float(data.draw(st.integers(0, 50)))
        first, number, generation = at, 0, 0
        rows: list[Row] = []
        for _ in range(data.draw(st.integers(1, 8))):
            at += data.draw(st.integers(0, 30))
            length = float(data.draw(st.integers(8, 40)))
            first = first if rows or (parts and parts[-1]["rank"][0] == rank) else at
            rows += step(number, at, length=length)
            at, number = at + length, number + 1
            if data.draw(st.booleans()):
                parts.append(events_of(rank, *rows, generation=generation))
                rows, generation = [], generation + 1
                number = max(0, number - data.draw(st.integers(0, 2)))
        if rows:
            parts.append(events_of(rank, *rows, generation=generation))
        ends[rank] = (at - first) * 1e-3
    spans = st.lists(st.tuples(st.floats(0, 0.3), st.floats(0, 0.3)), max_size=3)
    table = ledger(pl.concat(parts), Grid(), recoveries=data.draw(spans), pauses=data.draw(spans))
    totals = dict(table.group_by("rank").agg(pl.col("total").sum()).rows())
    assert totals == pytest.approx(ends)
    assert all(table[name].min() >= -1e-12 for name in COLUMNS)  # type: ignore[operator]
    mfu = data.draw(st.none() | st.floats(0, 1))
    shares = lost_time(table, mfu=mfu, bubble=data.draw(st.floats(0, 2)), replayed=0.5)
    assert shares["share"].sum() == pytest.approx(1.0)


def test_mfu_counts_kept_steps_over_all_time_and_leaves_the_rest_below_the_peak() -> None:
    rows = ledger(events_of(0, *step(0, 0), *step(1, 10)), Grid())
    mfu = model_flops_share(rows, flops_per_step=1e6, peak_flops=1e9)
    assert mfu == pytest.approx(2e6 / 1e9 / 0.020)
    shares = cause_shares(lost_time(rows, mfu=mfu))
    assert shares[MFU] == mfu and shares[BELOW_PEAK] == pytest.approx(0.6 - 0.1)
    assert model_flops_share(rows, flops_per_step=1e6, peak_flops=None) is None
    assert lost_time(rows.clear()).is_empty()


def test_slow_steps_name_the_straggler_the_evaluation_and_the_pause() -> None:
    parts = []
    for rank in (0, 1):
        rows, at = [], 0.0
        for number in range(12):
            slow = 30.0 if number == 4 else 0.0
            if number == 7:
                rows.append((Kind.EVAL, 7, at, at + 50))
                at += 50
            if number == 9:
                at += 80
            rows += step(number, at, compute=6 + (slow if rank == 1 else 0), length=10 + slow)
            if slow and rank == 0:
                rows.append((-Kind.RECV_BACKWARD, number, at + 7, at + 37))
            at += 10 + slow
        parts.append(events_of(rank, *rows))
    events = pl.concat(parts).sort("rank", "start_ns", "sequence")
    table = ledger(events, Grid(pp=2), pauses=[(0.181, 0.250)])
    found = slow_steps(table, 3)
    assert found["step"].to_list() == [9, 7, 4]
    assert found["cause"].to_list() == [COLUMNS[n] for n in ("paused", "evaluation", "compute")]
    assert found["rank"].to_list() == [None, None, 1]
    assert found["cause_s"].to_list() == pytest.approx([0.069, 0.05, 0.03])
    assert found["beyond_s"].to_list() == pytest.approx([0.08, 0.05, 0.03])
    (times,) = step_time_quantiles(table).to_dicts()
    assert times["p50_s"] == pytest.approx(0.01) and times["highest_s"] == pytest.approx(0.09)
    assert times["num_steps"] == 12


def test_pauses_are_read_from_the_journal() -> None:
    rows = [("command", 1.0, "pause"), ("command", 2.0, "pause"), ("command", 4.0, "resume"),
            ("fence", 5.0, ""), ("command", 6.0, "resume"), ("command", 7.0, "pause")]  # fmt: skip
    journal = [
        JournalEvent(number, 1, at, at, name, {"operation": operation})
        for number, (name, at, operation) in enumerate(rows)
    ]
    assert pauses(journal, 9.0) == [(1.0, 4.0), (7.0, 9.0)]
