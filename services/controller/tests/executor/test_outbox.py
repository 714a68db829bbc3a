"""Reports wait for a driver: in order, bounded, and independent of every clock."""

from __future__ import annotations

import time

import pytest
from headway.common.wire.messages.driver import Report
from headway.common.wire.messages.executor import Evaluation, Sample, StepMetrics
from headway.controller.executor.outbox import PATIENCE, Outbox


def metrics(step: int, generation: int = 0) -> StepMetrics:
    return StepMetrics(
        generation=generation, step=step, loss=1.0, grad_norm=1.0, lr=0.1, tokens=8, duration_s=0.1,
        unix_s=1.0,
    )  # fmt: skip


def outbox(num: int, limit: int = 100) -> Outbox:
    made = Outbox(0, 5, limit=limit)
    for step in range(num):
        made.add("n0w0", metrics(step))
    return made


def sent(box: Outbox, at_most: int = 256, room: int = 10**6) -> list[Report]:
    taken: list[Report] = []

    def send(report: Report) -> bool:
        if len(taken) == room:
            return False
        taken.append(report)
        return True

    box.send(send, at_most)
    return taken


def test_reports_are_numbered_from_one_and_sent_once_in_order() -> None:
    box = outbox(3)
    assert [(r.sequence, r.oldest, r.incarnation) for r in sent(box)] == [
        (1, 1, 5),
        (2, 1, 5),
        (3, 1, 5),
    ]
    assert sent(box) == []
    box.add("n0w0", metrics(3))
    assert [r.sequence for r in sent(box)] == [4]


def test_each_kind_of_report_travels_in_its_own_field() -> None:
    box = outbox(1)
    evaluation = Evaluation(generation=0, step=1, loss=1.0, tokens=1)
    sample = Sample(generation=0, tokens=(1, 2), num_prompt_tokens=1)
    box.add("n0w0", evaluation)
    box.add("n0w0", sample)
    found = [(r.metrics, r.evaluation, r.sample) for r in sent(box)]
    assert found == [(metrics(0), None, None), (None, evaluation, None), (None, None, sample)]


def test_another_driver_gets_what_is_not_acknowledged_a_part_at_a_time() -> None:
    box = outbox(10)
    sent(box)
    box.acknowledge(2)
    box.begin_again()
    parts = [[r.sequence for r in sent(box, at_most=3)] for _ in range(4)]
    assert parts == [[3, 4, 5], [6, 7, 8], [9, 10], []]


def test_a_queue_that_is_full_is_gone_on_with_later() -> None:
    box = outbox(5)
    assert [r.sequence for r in sent(box, room=2)] == [1, 2]
    assert [r.sequence for r in sent(box)] == [3, 4, 5]


def test_what_gets_lost_on_the_way_is_sent_again() -> None:
    box = outbox(2)
    sent(box)
    for _ in range(PATIENCE):
        assert sent(box) == []
        box.missed_beat()
    assert [r.sequence for r in sent(box)] == [1, 2]


def test_a_flood_without_a_driver_loses_the_oldest_counted_and_never_wedges() -> None:
    """A driver that stores what follows its newest, or what is said to be the oldest,
    stores all that is left."""
    box = outbox(0, limit=5)
    stored: list[int] = []

    def store(report: Report) -> bool:
        newest = stored[-1] if stored else 0
        if newest < report.sequence and max(newest + 1, report.oldest) == report.sequence:
            stored.append(report.sequence)
        return True

    for step in range(3):
        box.add("n0w0", metrics(step))
    box.send(store)
    box.acknowledge(stored[-1])
    for step in range(3, 20):
        box.add("n0w0", metrics(step))
    assert (len(box), box.num_lost) == (5, 12)
    for step in range(20, 24):
        box.send(store)
        box.acknowledge(stored[-1])
        box.add("n0w0", metrics(step))
    assert stored == [1, 2, 3, *range(16, 24)] and len(box) == 1


def test_a_clock_that_is_set_back_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    box = outbox(2)
    assert [r.sequence for r in sent(box)] == [1, 2]


def test_a_worker_is_told_what_is_stored_of_its_own_metrics() -> None:
    box = outbox(2)
    box.add("n0w1", metrics(7, generation=1))
    box.add("n0w1", Evaluation(generation=1, step=8, loss=1.0, tokens=1))
    assert box.stored("n0w0") == box.stored("n0w1") == (-1, -1)
    box.acknowledge(1)
    assert (box.stored("n0w0"), box.stored("n0w1")) == ((0, 0), (-1, -1))
    box.acknowledge(4)
    assert (box.stored("n0w0"), box.stored("n0w1")) == ((0, 1), (1, 7))
    assert len(box) == 0 and box.oldest == 5
    box.forget("n0w1")
    assert box.stored("n0w1") == (-1, -1)
