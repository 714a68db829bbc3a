"""Frames over metrics, records and the journal say what happened, no more and no less."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from headway.common.node.event_files import WINDOW
from headway.common.node.flight_record import BROKEN, RECORD
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.episodes import recoveries
from headway.console.analysis.events import completed_steps, frame, load_events, redone_steps
from headway.console.analysis.metrics import METRICS, current, load_evaluations, load_metrics
from headway.console.testing import STEP_S, TOKENS, FakeRun
from headway.controller.client import JournalEvent
from hypothesis import given, settings
from hypothesis import strategies as st

MS = 1_000_000


def records(*rows: tuple[Kind, int, int, int, int], generation: int = 0) -> np.ndarray:
    """(kind, step, start_ms, end_ms, flags) each."""
    made = np.zeros(len(rows), RECORD)
    for number, (kind, step, start, end, flags) in enumerate(rows):
        made[number]["kind"], made[number]["step"], made[number]["flags"] = kind, step, flags
        made[number]["start_ns"], made[number]["end_ns"] = start * MS, end * MS
        made[number]["sequence"], made[number]["generation"] = number, generation
        made[number]["micro_batch"] = -1
    return made


def a_step(step: int, start: int, *, broken: bool = False) -> list[tuple[Kind, int, int, int, int]]:
    """10 ms of which 4 compute and 3 wait; a broken one is left by an exception."""
    rows = [
        (Kind.STEP, step, start, start + 10, BROKEN if broken else 0),
        (Kind.FORWARD, step, start, start + 2, 0),
        (Kind.FORWARD, step, start + 2, start + 5, 1),
        (Kind.BACKWARD, step, start + 5, start + 7, 0),
    ]
    return rows if broken else [*rows, (Kind.SNAPSHOT, step, start + 9, start + 10, 0)]


def metrics(*rows: tuple[int, int, float, float]) -> pl.DataFrame:
    """(generation, step, duration_s, unix_s) each; superseded as the journal marks it."""
    found = [
        (
            g,
            s,
            5.0,
            1.0,
            1e-3,
            100,
            d,
            u,
            False,
            any(g < newer and s >= at for newer, at, *_ in rows),
        )
        for g, s, d, u in rows
    ]
    return pl.DataFrame(found, schema=METRICS, orient="row")


def test_a_step_done_again_counts_once_and_as_the_newest_generation_did_it() -> None:
    table = metrics((0, 0, 1.0, 1), (0, 1, 1.0, 2), (1, 1, 4.0, 9))
    assert current(table)["generation"].to_list() == [0, 1]
    assert current(table)["duration_s"].to_list() == [1.0, 4.0]


def test_a_broken_off_step_is_not_a_completed_one() -> None:
    events = frame(0, 0, records(*a_step(0, 0), *a_step(1, 10, broken=True)))
    assert completed_steps(events)["step"].to_list() == [0]


def test_steps_done_again_are_counted_per_recovery_and_not_per_rank() -> None:
    parts = []
    for rank in (0, 1):
        parts.append(
            frame(0, rank, records(*a_step(0, 0), *a_step(1, 10), *a_step(2, 20, broken=True)))
        )
        parts.append(frame(0, rank, records(*a_step(1, 40), *a_step(2, 50), generation=1)))
    again = redone_steps(pl.concat(parts)).to_dicts()
    assert again == [{"generation": 1, "num_steps": 1, "ranks": 2}]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_redone_steps_equal_a_count_by_hand(lengths: list[int]) -> None:
    """Generation g starts where the one before stood or one step earlier,
    and completes lengths[g] steps."""
    parts, done, expected, position, at = [], set[int](), {}, 0, 0
    for generation, length in enumerate(lengths):
        position = max(0, position - generation % 2)
        steps = range(position, position + length)
        rows = [row for step in steps for row in a_step(step, at + 10 * (step - position))]
        at += 10 * length + 5
        if rows:
            parts.append(frame(0, 0, records(*rows, generation=generation)))
        if repeated := len(done.intersection(steps)):
            expected[generation] = repeated
        done.update(steps)
        position += length
    if parts:
        found = redone_steps(pl.concat(parts))
        assert dict(found.select("generation", "num_steps").iter_rows()) == expected


def test_the_time_that_a_run_was_down_is_no_recovery() -> None:
    def found(*events: tuple[float, str]) -> list[float]:
        fields = {
            "generation": 1, "step": 3, "source": "durable", "reason": "x", "target": "worker"
        }  # fmt: skip
        rows = journal(*((name, at, fields) for at, name in events))
        return recoveries(rows)["total_s"].to_list()

    begun, back = (
        [(0.0, "driver_started"), (1.0, "fence")],
        [(66.0, "generation"), (67.0, "stepping")],
    )
    assert found(*begun, (2.0, "run_over"), (65.0, "driver_started"), *back) == [], (
        "stopped in the middle of it"
    )
    assert found(*begun, (65.0, "driver_started"), *back) == [], (
        "everything was killed in the middle of it"
    )
    assert found((0.0, "injected"), (2.0, "run_over"), (65.0, "driver_started"), *back, (70.0,
                                                                                         "fence"),
                 (71.0, "generation"), (72.0, "stepping")) == [2.0]  # fmt: skip
    assert found(
        *begun, (2.0, "driver_started"), (3.0, "fence"), (4.0, "generation"), (5.0, "stepping")
    ) == [4.0], "only the driver was restarted"


def test_records_of_windows_and_rings_are_read_once_and_a_closed_one_wins(fake: FakeRun) -> None:
    fake.advance(3)
    live = load_events(fake.folder.path)
    assert completed_steps(live).group_by("rank").len()["len"].to_list() == [3, 3]
    saved = live.filter(pl.col("rank") == 0).head(4)
    window = np.zeros(len(saved), WINDOW)
    for name in ("kind", "step", "generation", "sequence", "start_ns", "end_ns", "micro_batch"):
        window[name] = saved[name].to_numpy()
    window["end_ns"][-1] = 0  # saved while it was open
    np.save(fake.folder.events / f"n0-{0:020d}.npy", window)
    again = load_events(fake.folder.path)
    assert len(again) == len(live)
    assert again["end_ns"].null_count() == 0


def test_metrics_come_from_the_journal_of_a_living_run(fake: FakeRun) -> None:
    assert load_metrics(fake.run).is_empty()
    fake.advance(4)
    fake.evaluate(5.5)
    table = load_metrics(fake.run)
    assert table["step"].to_list() == [0, 1, 2, 3]
    assert set(table.select("tokens", "duration_s").iter_rows()) == {(TOKENS, STEP_S)}
    assert load_evaluations(fake.run).to_dicts() == [
        {"generation": 0, "step": 4, "loss": 5.5, "tokens": TOKENS}
    ]


def test_a_recovery_is_split_at_fence_generation_restore_and_first_step(fake: FakeRun) -> None:
    fake.advance(3)
    fake.recover(back_to=2)
    events = load_events(fake.folder.path)
    (row,) = recoveries(fake.run.records.events(), events).to_dicts()
    assert (row["generation"], row["step"], row["source"], row["attempts"]) == (1, 2, "arena", 1)
    assert row["detect_s"] is None, "no fault was put in"
    spans = [row["decide_s"], row["restore_s"], row["first_step_s"]]
    assert all(span is not None and span >= 0 for span in spans)
    assert sum(spans) == pytest.approx(row["total_s"]), "the parts add up"
    assert redone_steps(events).to_dicts() == [{"generation": 1, "num_steps": 1, "ranks": 2}]


def journal(*rows: tuple[str, float, dict[str, object]]) -> list[JournalEvent]:
    """(name, monotonic_s, fields) each."""
    return [
        JournalEvent(number, 1, at, at, name, fields)
        for number, (name, at, fields) in enumerate(rows)
    ]


GEN1 = {"generation": 1, "step": 7, "source": "arena"}
GEN2 = {"generation": 2, "step": 7, "source": "durable"}


def test_a_double_fault_is_one_recovery_of_two_attempts() -> None:
    table = recoveries(journal(
        ("generation", 0, {"generation": 0, "step": 0, "source": "init"}), ("stepping", 1, {}),
        ("injected", 10, {}), ("fence", 11, {"reason": "rank 1"}), ("generation", 12, GEN1),
        ("injected", 12.5, {}), ("fence", 13, {"reason": "rank 2"}), ("generation", 14, GEN2),
        ("stepping", 16, {}),
    ))  # fmt: skip
    (row,) = table.to_dicts()
    assert (row["generation"], row["attempts"], row["reason"]) == (2, 2, "rank 1")
    assert row["detect_s"] == pytest.approx(1.0)
    assert row["decide_s"] == pytest.approx(3.0)
    assert row["first_step_s"] == pytest.approx(2.0) and row["restore_s"] is None
    assert row["total_s"] == pytest.approx(6.0)


def test_a_recovery_that_ends_in_a_pause_has_no_first_step_and_its_parts_add_up() -> None:
    paused = ("stepping", 14.0, {"paused": True})
    rows = [("injected", 10.0, {}), ("fence", 11.0, {"reason": "x"}), ("generation", 12.5, GEN1)]
    (row,) = recoveries(journal(*rows, paused, ("stepping", 90.0, {}))).to_dicts()
    assert row["is_paused"] and row["first_step_s"] is None
    spans = [row[name] for name in ("detect_s", "decide_s", "restore_s")]
    assert spans == pytest.approx([1.0, 1.5, 1.5]) and row["total_s"] == pytest.approx(4.0)


def test_a_fault_is_the_cause_of_one_recovery_only() -> None:
    again = [("fence", 50.0, {"reason": "y"}), ("generation", 51.0, GEN2), ("stepping", 52.0, {})]
    rows = [("injected", 1.0, {}), ("fence", 2.0, {"reason": "x"}), ("generation", 3.0, GEN1)]
    table = recoveries(journal(*rows, ("stepping", 4.0, {}), *again))
    assert table["detect_s"].to_list() == [1.0, None]


@pytest.mark.parametrize(
    ("is_symptom", "reason"), [(True, "rank 3 is lost: killed"), (False, "rank 2 is lost: stopped")]
)
def test_a_recovery_names_what_was_lost_and_not_the_survivor_who_felt_it(
    is_symptom: bool, reason: str
) -> None:
    (row,) = recoveries(journal(
        ("fence", 1, {"reason": "rank 2 is lost: stopped", "is_symptom": is_symptom}),
        ("worker_lost", 2, {"rank": 3, "reason": "killed"}), ("worker_lost", 3, {"rank": 1,
                                                                                 "reason": "late"}),
        ("generation", 4, GEN1), ("stepping", 5, {}),
    )).to_dicts()  # fmt: skip
    assert row["reason"] == reason


def test_the_start_of_a_run_is_no_recovery_and_one_under_way_has_no_total() -> None:
    start = ("generation", 0.0, {"generation": 0, "step": 0, "source": "init"})
    assert recoveries(journal(start, ("stepping", 1, {}))).is_empty()
    (row,) = recoveries(
        journal(start, ("stepping", 1, {}), ("fence", 2, {"reason": "x"}))
    ).to_dicts()
    assert row["generation"] == -1 and row["total_s"] is None


def test_a_fault_that_needed_no_recovery_does_not_lengthen_the_next_one() -> None:
    rows = [("injected", 1.0, {}), ("stepping", 5.0, {}),
            ("injected", 80.0, {"target": "dataloader"}), ("fence", 90.0, {"reason": "x"}),
            ("generation", 91.0, GEN1), ("stepping", 92.0, {})]  # fmt: skip
    (row,) = recoveries(journal(*rows)).to_dicts()
    assert row["detect_s"] is None
