"""Summaries are taken in every second, however long their judgements take."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from headway.common.node.testing import wait_until
from headway.common.wire.messages.summaries import StepSummary
from headway.health import slow_thread
from headway.health.config import HealthConfig
from headway.health.slow_thread import AT_ONCE, SlowThread

WORK_S = 0.2
"""Of a processor; the next judgement rests for longer than this test takes."""


class Slow:
    """Takes in summaries at once; a judgement of them takes long."""

    def __init__(self, *_: object) -> None:
        self.added: list[int] = []
        self.most_at_once = 0
        self.num_judged = 0
        made.append(self)

    def add(self, arrived: Sequence[tuple[StepSummary, float]]) -> None:
        self.most_at_once = max(self.most_at_once, len(arrived))
        self.added += [summary.sequence for summary, _ in arrived]

    def judge(self, now_s: float) -> None:
        del now_s
        self.num_judged += 1
        until_s = time.thread_time() + WORK_S
        while time.thread_time() < until_s:
            pass


made: list[Slow] = []


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowThread]:
    monkeypatch.setattr(slow_thread, "LiveSlowness", Slow)
    monkeypatch.setattr(slow_thread, "LOOK_S", 0.02)
    monkeypatch.setattr(slow_thread, "REST", 1000.0)
    made.clear()
    with closing(SlowThread(None, HealthConfig(), lambda _: None)) as found:
        yield found


def summary(sequence: int) -> StepSummary:
    return StepSummary(
        run_id="r", node=0, pid=1, boot_id="b", sequence=sequence, num_dropped=0, steps=()
    )


def test_what_arrives_while_a_judgement_rests_does_not_wait_as_messages(
    thread: SlowThread,
) -> None:
    [live] = made
    wait_until(lambda: live.num_judged == 1, what="the first judgement")
    for sequence in range(200):
        thread.add(summary(sequence))
    wait_until(lambda: len(live.added) == 200, what="all of them taken in")
    assert live.added == list(range(200)), "in order"
    assert live.num_judged == 1
    assert live.most_at_once <= AT_ONCE < 200, "the loop's thread waits for each call"
