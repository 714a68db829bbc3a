"""Hand-made records with known answers: bubbles, waits, hidden communication, lost time."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest
from headway.common.errors import InputError
from headway.common.node.flight_record import RECORD, WAITING
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Action, Kind, Schedule
from headway.common.plan.schedule.generate import bubble_fraction, generate
from headway.common.plan.schedule.timeline import unit_timeline
from headway.console.analysis.actions import step_actions
from headway.console.analysis.bubble import bubbles, measured_bubble, theoretical_bubble
from headway.console.analysis.by_action import action_times, heat_map
from headway.console.analysis.causes import (
    BEYOND,
    BUBBLE,
    COMPUTE,
    MFU,
    NOT_RECORDED,
    UNEQUAL,
    lost_time,
)
from headway.console.analysis.events import frame
from headway.console.analysis.overlap import communication
from headway.console.analysis.time_ledger import COLUMNS, ledger
from headway.console.testing import FakeRun, Row, events_of

MS = 1_000_000


def pipeline_events(
    schedule: Schedule,
    costs: dict[int, float],
    *,
    steps: int = 1,
    transfer_ms: float = 0.0,
    late_ms: float = 0.0,
) -> pl.DataFrame:
    """Records of a pipeline that keeps to its schedule, messages sent as soon as they are made.

    A pass takes its unit time x ``costs[rank]`` ms. Each rank waits at its NORM for the last one,
    ``late_ms`` longer than needed, and a receive ends ``transfer_ms`` after its message was sent.
    """
    spans = unit_timeline(schedule, lambda rank, action: _unit(action) * costs[rank])
    last = max(span.end for span in spans) + late_ms
    parts = []
    for rank in range(schedule.pp):
        for step in range(steps):
            origin = 100.0 + step * last
            rows, at = [(Kind.STEP, step, origin, origin + last, -1, 0, -1)], origin
            for span in (span for span in spans if span.rank == rank):
                start, end = origin + span.start, origin + span.end
                where = span.action.micro_batch, span.action.chunk
                if start > at and span.action.kind is not Kind.BACKWARD_WEIGHT:
                    is_forward = span.action.kind is Kind.FORWARD
                    kind = Kind.RECV_FORWARD if is_forward else Kind.RECV_BACKWARD
                    rows.append((-kind, step, at, start, *where, rank))
                rows.append((span.action.kind, step, start, end, *where, -1))
                send = Kind.SEND_FORWARD if span.action.kind is Kind.FORWARD else Kind.SEND_BACKWARD
                sent = end - transfer_ms
                if span.action.kind is not Kind.BACKWARD_WEIGHT:
                    rows.append((send, step, sent, sent, *where, rank))
                at = end
            rows.append((Kind.NORM, step, at, origin + last, -1, 0, -1))
            rows.sort(key=lambda row: row[2])
            made = np.zeros(len(rows), RECORD)
            for number, (kind, _, start, end, micro_batch, chunk, peer) in enumerate(rows):
                made[number]["kind"], made[number]["flags"] = abs(kind), WAITING * (kind < 0)
                made[number]["step"], made[number]["sequence"] = step, 1000 * step + number
                made[number]["start_ns"] = round(start * MS)
                made[number]["end_ns"] = round(end * MS)
                made[number]["micro_batch"], made[number]["chunk"] = micro_batch, chunk
                made[number]["peer"] = peer
            parts.append(frame(0, rank, made))
    return pl.concat(parts).sort("rank", "start_ns", "sequence")


def step(number: int, start: float, *, compute: float = 6.0, length: float = 10.0) -> list[Row]:
    """1 ms of data, then compute; the rest is not recorded."""
    return [
        (Kind.STEP, number, start, start + length),
        (Kind.DATA, number, start, start + 1),
        (Kind.FORWARD, number, start + 1, start + 1 + compute),
    ]


def _unit(action: Action) -> float:
    return 2.0 if action.kind is Kind.BACKWARD else 1.0


@pytest.mark.parametrize(
    ("name", "pp", "vp", "m"),
    [
        ("1f1b", 2, 1, 4),
        ("1f1b", 4, 1, 8),
        ("gpipe", 3, 1, 5),
        ("interleaved", 4, 2, 8),
        ("zb-v", 4, 2, 8),
    ],
)
def test_the_bubble_of_a_schedule_that_is_kept_is_the_one_in_theory(
    name: str, pp: int, vp: int, m: int
) -> None:
    schedule = generate(name, pp=pp, vp=vp, num_micro_batches=m)
    events = pipeline_events(schedule, dict.fromkeys(range(pp), 10.0), steps=3)
    grid = Grid(pp=pp, vp=vp, is_v=schedule.is_v)
    actions = step_actions(events, grid)
    theory = bubble_fraction(pp=pp, num_micro_batches=m, vp=vp) / (3 if schedule.is_v else 1)
    assert theoretical_bubble(schedule) == pytest.approx(theory)
    assert measured_bubble(actions)["bubble"].to_list() == pytest.approx([theory] * 3)
    assert bubbles(actions, schedule)["bubble"].to_list() == pytest.approx([theory] * 3)

    shares = cause_shares(lost_time(ledger(events, grid), bubble=theory, replayed=theory))
    assert shares[BUBBLE] == pytest.approx(theory / (1 + theory))
    assert shares[COMPUTE] == pytest.approx(1 / (1 + theory))
    for nothing in (UNEQUAL, BEYOND, NOT_RECORDED, COLUMNS["communication"]):
        assert shares[nothing] == pytest.approx(0.0, abs=1e-9), nothing


def cause_shares(table: pl.DataFrame) -> dict[str, float]:
    """Cause -> share; they add up to 1."""
    assert table["share"].sum() == pytest.approx(1.0, abs=1e-12)
    return dict(table.select("cause", "share").iter_rows())


def test_unequal_stages_are_a_cause_of_their_own_and_so_is_waiting_beyond() -> None:
    schedule = generate("1f1b", pp=2, num_micro_batches=4)
    theory = theoretical_bubble(schedule)
    grid = Grid(pp=2)
    # stage 0: 4 x 30 = 120 ms of passes, stage 1: 240; the step: 10 + 240 + 20 + 30 late
    events = pipeline_events(schedule, {0: 10.0, 1: 20.0}, late_ms=30.0)
    replayed = bubbles(step_actions(events, grid), schedule)["bubble"][1]
    assert replayed == pytest.approx(2 * 270 / 360 - 1)
    shares = cause_shares(lost_time(ledger(events, grid), bubble=theory, replayed=replayed))
    assert shares[COMPUTE] == pytest.approx(360 / 600)
    assert shares[BUBBLE] == pytest.approx(90 / 600)
    assert shares[UNEQUAL] == pytest.approx((180 - 90) / 600)
    # both ranks are in the norm for the last 30 ms: which is communication and not waiting
    assert shares[BEYOND] == pytest.approx(0.0, abs=1e-9)
    assert shares[COLUMNS["communication"]] == pytest.approx(60 / 600)


def test_of_a_receive_only_what_follows_its_send_is_communication() -> None:
    schedule = generate("1f1b", pp=2, num_micro_batches=4)
    grid = Grid(pp=2)
    events = pipeline_events(schedule, {0: 10.0, 1: 10.0}, transfer_ms=2.0)
    actions = step_actions(events, grid)
    waits = actions.filter(pl.col("action").str.starts_with("RECV"))
    assert len(waits) > 0
    exposed_ms = (waits["own_ns"] - waits["late_ns"]) / MS
    assert exposed_ms.to_list() == pytest.approx([2.0] * len(waits))
    unknown = step_actions(events.filter(~pl.col("action").str.starts_with("SEND")), grid)
    waits = unknown.filter(pl.col("action").str.starts_with("RECV"))
    assert waits["late_ns"].to_list() == [0] * len(waits), "the sender's records are not there"


def test_hidden_communication_is_what_nobody_waited_for() -> None:
    rows = [
        (Kind.STEP, 0, 0, 100),
        (Kind.ALL_GATHER, 0, 0, 1),
        (Kind.FORWARD, 0, 1, 41),
        (-Kind.ALL_GATHER, 0, 41, 50),  # 1 + 9 of 50 ms exposed
        (Kind.REDUCE_SCATTER, 0, 50, 51),
        (-Kind.REDUCE_SCATTER, 0, 51, 91),  # the other replica comes at 71
    ]
    late = [
        (Kind.STEP, 0, 0, 100),
        (Kind.ALL_GATHER, 0, 0, 1),
        (-Kind.ALL_GATHER, 0, 50, 50),
        (Kind.REDUCE_SCATTER, 0, 71, 73),
        (-Kind.REDUCE_SCATTER, 0, 73, 91),
    ]
    events = pl.concat([events_of(0, *rows, nbytes=1 << 20), events_of(1, *late, nbytes=1 << 20)])
    actions = step_actions(events, Grid(dp=2))
    (wait,) = actions.filter(
        (pl.col("rank") == 0) & (pl.col("action") == "REDUCE_SCATTER") & pl.col("waiting")
    ).to_dicts()
    assert wait["late_ns"] == 20 * MS, "until the other replica issued it"
    found = {row["communication"]: row for row in communication(actions).to_dicts()}
    gather = found["parameters (all-gather)"]
    assert gather["num_per_step"] == 1.0 and gather["mib_per_step"] == 1.0
    assert gather["open_s"] == pytest.approx((50 + 50) / 2 * 1e-3)
    assert gather["exposed_s"] == pytest.approx((10 + 1) / 2 * 1e-3)
    assert gather["hidden"] == pytest.approx(1 - 11 / 100)
    reduce = found["gradients (reduce-scatter)"]
    assert reduce["open_s"] == pytest.approx((1 + 20 + 20) / 2 * 1e-3)
    assert reduce["hidden"] == pytest.approx(0.0)
    assert communication(actions.clear()).is_empty()


def test_a_pass_is_shorter_by_the_wait_for_a_bucket_within_it() -> None:
    """Two buckets: the second one's parameters are waited for when its layers are reached."""
    gather, reduce = Kind.ALL_GATHER, Kind.REDUCE_SCATTER
    rows = [
        (Kind.STEP, 0, 0, 100, 0, -1, 0), (gather, 0, 0, 1, 0, 0, 0), (gather, 0, 1, 2, 0, 1, 0),
        (gather, 0, 2, 3, WAITING, 0, 0), (Kind.FORWARD, 0, 3, 43, 0, 0, 0),
        (gather, 0, 13, 33, WAITING, 1, 0), (Kind.BACKWARD, 0, 43, 83, 0, 0, 0),
        (reduce, 0, 60, 61, 0, 1, 0), (reduce, 0, 83, 84, 0, 0, 0),
        (reduce, 0, 84, 85, WAITING, 1, 0), (reduce, 0, 85, 95, WAITING, 0, 0),
    ]  # fmt: skip
    made = np.zeros(len(rows), RECORD)
    for number, (kind, step, start, end, flags, place, chunk) in enumerate(rows):
        made[number]["kind"], made[number]["step"], made[number]["flags"] = kind, step, flags
        made[number]["start_ns"], made[number]["end_ns"] = start * MS, end * MS
        made[number]["sequence"], made[number]["nbytes"] = number, 1 << 20
        made[number]["micro_batch"], made[number]["chunk"] = place, chunk
    events = pl.concat([frame(0, rank, made) for rank in (0, 1)])
    actions = step_actions(events, Grid(dp=2))
    mine = actions.filter(pl.col("rank") == 0)
    (forward,) = mine.filter(pl.col("action") == "FORWARD").to_dicts()
    assert forward["own_ns"] == 20 * MS
    waits = mine.filter((pl.col("action") == gather.name) & pl.col("waiting"))
    assert waits["own_ns"].to_list() == [1 * MS, 20 * MS]
    assert mine["own_ns"].sum() == 95 * MS, "they add up"
    found = {row["communication"]: row for row in communication(actions).to_dicts()}
    assert found["parameters (all-gather)"]["num_per_step"] == 2.0
    assert found["gradients (reduce-scatter)"]["mib_per_step"] == 2.0


def test_one_rank_communicates_with_nobody() -> None:
    rows = [
        (Kind.STEP, 0, 0, 10),
        (Kind.ALL_GATHER, 0, 0, 1),
        (-Kind.ALL_GATHER, 0, 1, 2),
        (Kind.FORWARD, 0, 2, 7),
        (Kind.REDUCE_SCATTER, 0, 7, 8),
        (-Kind.REDUCE_SCATTER, 0, 8, 9),
        (Kind.NORM, 0, 9, 10),
    ]
    events = events_of(0, *rows, nbytes=1 << 20)
    assert communication(step_actions(events, Grid())).is_empty()
    assert not communication(step_actions(events, Grid(dp=2))).is_empty()
    (row,) = ledger(events, Grid()).to_dicts()
    assert row["communication"] == row["waiting"] == 0.0
    assert row["optimizer"] == pytest.approx(5e-3) and row["total"] == pytest.approx(10e-3)


def test_what_an_evaluation_does_is_no_part_of_its_step() -> None:
    rows = [
        (Kind.EVAL, 0, 0, 40),
        (Kind.FORWARD, 0, 1, 39),  # recorded with the number of the step that follows
        (Kind.STEP, 0, 40, 60),
        (Kind.FORWARD, 0, 41, 51),
    ]
    actions = step_actions(events_of(0, *rows), Grid())
    assert actions["own_ns"].to_list() == [10 * MS]


def test_action_times_are_by_stage_and_the_heat_map_is_by_rank() -> None:
    parts = [
        events_of(rank, *step(0, 0, compute=2 + rank), *step(1, 10, compute=4 + rank))
        for rank in range(4)
    ]
    actions = step_actions(pl.concat(parts), Grid(pp=2, dp=2))
    found = action_times(actions)
    assert found["pp_rank"].to_list() == [0, 0, 1, 1]
    assert found["label"].to_list() == ["forward", "data"] * 2
    assert found["p50_s"].to_list() == pytest.approx([0.0035, 0.001, 0.0055, 0.001])
    assert found["num_per_step"].to_list() == [1.0] * 4
    assert found["share"].to_list() == pytest.approx([14 / 18, 4 / 18, 22 / 26, 4 / 26])
    table = heat_map(actions)
    assert table.columns == ["rank", "forward", "data"]
    assert table["forward"].to_list() == pytest.approx([0.003, 0.004, 0.005, 0.006])


def test_a_live_run_shows_all_of_it(fake: FakeRun) -> None:
    with pytest.raises(InputError, match="no records of completed steps"):
        fake.run.performance()
    fake.advance(3)
    fake.recover(back_to=2)
    fake.advance(2)
    shown = fake.run.performance()
    assert "5 of 5 completed steps" in repr(shown) and "peak was not measured" in repr(shown)
    tables = [
        shown.lost_time(), shown.bubble(), shown.communication(), shown.actions(),
        shown.heat_map(), shown.step_times(), shown.slow_steps(),
    ]  # fmt: skip
    assert tables[0].frame["share"].sum() == pytest.approx(1.0)
    for table in tables:
        assert table.title in repr(table) and "<table>" in table._repr_html_()
    for name in ("rank 0", "rank 1", "forward", "<svg"):
        assert name in shown.picture()._repr_html_()
    with pytest.raises(InputError, match="step 77 is not recorded"):
        shown.picture(77)
    some = fake.run.performance(first_step=1, last_step=2)
    assert "2 of 5 completed steps" in repr(some)
    assert some.ledger["total"].sum() < shown.ledger["total"].sum()
    assert set(some.actions_frame["step"]) == {1, 2}
    assert some.lost_time().frame["share"].sum() == pytest.approx(1.0)


def test_mfu_of_a_run_needs_a_peak_of_an_idle_machine(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.console.folder.records import RunRecords
    from headway.console.machine.peak import Peak

    fake.advance(2)
    idle = Peak("cpu", "made up", 2, {"fp32": 1e12}, waited=0.0)
    monkeypatch.setattr(RunRecords, "peak", property(lambda _: idle))
    found = fake.run.performance()
    assert found.mfu is not None and "of 1,000 GFLOP/s" in repr(found)
    assert found.lost_time().frame["cause"][0] == MFU
    busy = dataclasses.replace(idle, waited=0.5)
    monkeypatch.setattr(RunRecords, "peak", property(lambda _: busy))
    assert fake.run.performance().mfu is None
