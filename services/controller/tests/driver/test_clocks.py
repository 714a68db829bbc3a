"""The run's clock over a change of machines, and what is kept of the clocks of nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headway.common.wire.messages.driver import NodeBeat
from headway.controller.driver import clocks
from headway.controller.driver.clocks import RunClock
from headway.controller.journal.journal import Journal
from headway.controller.journal.rows import ClockReading

MS, HOUR_S = 10**6, 3600.0


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "run.sqlite", epoch=1)
    yield made
    made.close()


def beat(offset_ns: int | None, uncertainty_ns: int | None = MS, node: int = 1) -> NodeBeat:
    known: dict[str, Any] = {
        "clock_offset_ns": offset_ns,
        "clock_uncertainty_ns": uncertainty_ns,
    }
    return NodeBeat(node=node, pid=1, **known)


def is_about(clock: RunClock, ahead_s: float) -> bool:
    """Whether it is so far ahead of this machine's, give or take what a busy machine takes."""
    return abs(clock.now_s() - time.monotonic() - ahead_s) < HOUR_S / 10


def keep(journal: Journal, reading: ClockReading | None) -> None:
    assert reading is not None
    journal.append([journal.clock_record(reading)])


def test_the_first_driver_gives_the_run_its_clock(journal: Journal) -> None:
    clock = RunClock.continued(journal, 0, "boot")
    before, now, after = time.monotonic_ns(), clock.now_ns(), time.monotonic_ns()
    assert before <= now <= after
    own = clock.own(0, "boot")
    assert own is not None and (own.offset_ns, own.uncertainty_ns) == (0, 0)
    keep(journal, own)
    again = RunClock.continued(journal, 0, "boot")
    assert again.own(0, "boot") is None, "it is in the journal"


def test_a_driver_on_another_machine_continues_by_what_is_known_of_its_clock(
    journal: Journal,
) -> None:
    first = RunClock.continued(journal, 0, "a")
    keep(journal, first.own(0, "a"))
    keep(journal, first.compare(beat(round(HOUR_S * 1e9)), "b"))
    keep(journal, first.compare(beat(5, MS // 8), "b"))
    journal.event("last", {}, first.now_s())
    assert RunClock.continued(journal, 1, "b").now_ns() - time.monotonic_ns() <= 5
    assert is_about(RunClock.continued(journal, 0, "a"), 0.0)


def test_it_continues_by_the_wall_clock_where_its_machine_was_started_anew(
    journal: Journal,
) -> None:
    keep(journal, RunClock.continued(journal, 0, "a").own(0, "a"))
    journal.event("last", {}, time.monotonic() + HOUR_S)
    clock = RunClock.continued(journal, 0, "a later boot")
    assert is_about(clock, HOUR_S)
    own = clock.own(0, "a later boot")
    assert own is not None and own.offset_ns == pytest.approx(HOUR_S * 1e9, rel=0.1)


def test_only_news_of_a_clock_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = RunClock()
    assert clock.compare(beat(None, None), "b") is None
    assert clock.compare(beat(7), "") is None, "it has not joined"
    assert clock.compare(beat(0, 10 * MS), "b") is not None
    assert clock.compare(beat(5 * MS, 10 * MS), "b") is None, "both may be true"
    assert clock.compare(beat(2 * MS, 6 * MS), "b") is None, "hardly more certain"
    assert clock.compare(beat(2 * MS, MS), "b") is not None, "far more certain"
    assert clock.compare(beat(9 * MS, MS), "b") is None, "it drifts, and was kept just now"
    monkeypatch.setattr(clocks, "MOVED_S", 0.0)
    assert clock.compare(beat(9 * MS, MS), "b") is not None
    assert clock.compare(beat(9 * MS, MS), "a later boot") is not None
    assert clock.compare(beat(9 * MS, MS, node=2), "b") is not None


def test_a_clock_that_drifts_adds_few_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now_ns = RunClock(), 0
    monkeypatch.setattr(clocks.time, "monotonic_ns", lambda: now_ns)
    kept = 0
    for second in range(6000):
        now_ns = second * 10**9
        kept += clock.compare(beat(second * 50_000, MS // 10), "b") is not None
    assert 50 <= kept <= 101


@pytest.mark.parametrize("offset_ns", [2**63, -(2**63), 2**64 - 1])
def test_a_number_that_the_journal_cannot_hold_is_not_taken(offset_ns: int) -> None:
    assert RunClock().compare(beat(offset_ns), "b") is None
    assert RunClock().compare(beat(0, abs(offset_ns)), "b") is None
    assert RunClock().compare(beat(0, -1), "b") is None
