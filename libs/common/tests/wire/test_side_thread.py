"""Work beside the loop: in order or one of a kind, and what hangs keeps nobody from anything."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from headway.common.polling import wait_until
from headway.common.wire import side_thread
from headway.common.wire.side_thread import Callbacks, SideThread, ThreadPerKind
from structlog.testing import capture_logs

LIMIT_S = 30.0


class Outcomes(list[tuple[Any, str]]):
    """What was handed back, and on which thread."""

    def then(self, result: Any, error: Exception | None) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.append((result, str(error or "")))


def _run_until(thread: Callbacks, outcomes: Outcomes, number: int) -> None:
    """A loop's turns until so many outcomes have come, each after ``done_fd`` was readable."""
    while len(outcomes) < number:
        assert select.select([thread.done_fd], [], [], LIMIT_S)[0]
        thread.run_callbacks()


@pytest.fixture
def thread() -> Iterator[SideThread]:
    made = SideThread("test")
    yield made
    assert made.close(LIMIT_S)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Work that waits for it hangs until it is set."""
    made = threading.Event()
    yield made
    made.set()


# ---- in order ----------------------------------------------------------------------------------
def test_work_is_done_in_order_and_its_results_and_errors_are_handed_back(
    thread: SideThread,
) -> None:
    outcomes = Outcomes()
    thread.submit(lambda: threading.current_thread().name, outcomes.then)
    thread.submit(lambda: 1 // 0, outcomes.then)
    thread.submit(lambda: None)
    for number in range(100):
        thread.submit(lambda number=number: number, outcomes.then)  # type: ignore[misc]
    _run_until(thread, outcomes, 102)
    assert outcomes[:2] == [("test", ""), (None, "integer division or modulo by zero")]
    assert outcomes[2:] == [(number, "") for number in range(100)]
    assert not select.select([thread.done_fd], [], [], 0.0)[0], "or the loop would spin"


def test_a_callback_that_fails_keeps_no_other_waiting(thread: SideThread) -> None:
    outcomes = Outcomes()
    with capture_logs() as logs:
        for _ in range(2):
            thread.submit(lambda: 1, lambda _result, _error: 1 // 0)
            thread.submit(lambda: 2, outcomes.then)
        _run_until(thread, outcomes, 2)
    assert len(logs) == 2 and all(line["exc_info"] for line in logs)


def test_work_may_hand_back_more_than_its_result(thread: SideThread) -> None:
    outcomes = Outcomes()

    def work() -> str:
        thread.hand_back(lambda: outcomes.then("progress", None))
        return "result"

    thread.submit(work, outcomes.then)
    _run_until(thread, outcomes, 2)
    assert outcomes == [("progress", ""), ("result", "")]


def test_how_long_work_takes_is_known_while_it_hangs(
    thread: SideThread, gate: threading.Event
) -> None:
    assert thread.busy_s() == 0.0
    thread.submit(gate.wait)
    assert wait_until(lambda: thread.busy_s() > 0.01, LIMIT_S)
    gate.set()
    assert wait_until(lambda: thread.busy_s() == 0.0, LIMIT_S)


# ---- the end -----------------------------------------------------------------------------------
def test_what_waits_is_done_before_the_end_and_handed_back_after_it() -> None:
    thread, outcomes = SideThread("test"), Outcomes()
    for number in range(3):
        thread.submit(lambda number=number: number, outcomes.then)  # type: ignore[misc]
    assert thread.close(LIMIT_S) and thread.close(0.0)
    thread.submit(lambda: 3, outcomes.then)
    thread.run_callbacks()
    assert outcomes == [(number, "") for number in range(3)]


def test_work_that_hangs_is_left_to_itself_and_what_waits_behind_it_is_dropped(
    gate: threading.Event,
) -> None:
    thread, outcomes = SideThread("test"), Outcomes()
    thread.submit(gate.wait, outcomes.then)
    assert wait_until(lambda: thread.busy_s() > 0, LIMIT_S)
    thread.submit(lambda: 1, outcomes.then)
    assert not thread.close(0.01)
    others = os.eventfd(0, os.EFD_NONBLOCK)  # it may get the number that ``done_fd`` had
    gate.set()
    assert wait_until(lambda: not thread._thread.is_alive(), LIMIT_S)
    thread.run_callbacks()
    assert outcomes == [(True, "")]
    with pytest.raises(BlockingIOError):
        os.eventfd_read(others)
    os.close(others)


def test_work_that_hangs_keeps_no_process_from_ending() -> None:
    program = """
import threading
from headway.common.wire.side_thread import SideThread, ThreadPerKind
thread, kinds = SideThread("test"), ThreadPerKind()
for submit in (thread.submit, lambda work: kinds.submit("a", work, print)):
    begun = threading.Event()
    submit(lambda: (begun.set(), threading.Event().wait()))
    begun.wait()
thread.close(0.0)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=LIMIT_S).returncode == 0


# ---- what is done while no work waits ----------------------------------------------------------
def test_a_reading_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_thread, "REST_S", 0.001)
    calls: list[int] = []

    def fail_twice() -> float:
        calls.append(len(calls))
        if len(calls) < 3:
            raise OSError(5, "Input/output error")
        return 0.001

    with capture_logs() as logs:
        thread = SideThread("test", fail_twice)
        assert wait_until(lambda: len(calls) > 3, LIMIT_S), "further readings"
        assert thread.close(LIMIT_S)
    assert [(line["what"], line["error"]) for line in logs] == [
        ("test", "[Errno 5] Input/output error")
    ]


def test_work_goes_before_readings(gate: threading.Event) -> None:
    done: list[str] = []

    def read() -> float:
        done.append("reading")
        gate.wait()
        return 0.0 if len(done) < 3 else 60.0

    thread = SideThread("test", read)
    assert wait_until(lambda: bool(done), LIMIT_S)
    thread.submit(lambda: done.append("work"))
    gate.set()
    assert wait_until(lambda: len(done) == 3, LIMIT_S)
    assert done == ["reading", "work", "reading"]
    assert thread.close(LIMIT_S), "it does not wait for the next reading"


def test_a_reading_that_is_wanted_during_another_one_is_made_after_it(
    gate: threading.Event,
) -> None:
    begun: list[float] = []

    def read() -> float | None:
        begun.append(time.monotonic())
        gate.wait()
        return None if len(begun) == 1 else 60.0

    thread = SideThread("test", read)
    assert wait_until(lambda: len(begun) == 1, LIMIT_S)
    thread.wake()
    gate.set()
    assert wait_until(lambda: len(begun) == 2, LIMIT_S)
    thread.wake()
    assert wait_until(lambda: len(begun) == 3, LIMIT_S), "though its pause is not over"
    assert thread.close(LIMIT_S) and len(begun) == 3


def test_the_first_reading_may_be_made_later_or_when_it_is_wanted() -> None:
    calls: list[int] = []

    def read() -> None:
        calls.append(1)

    soon, late = SideThread("soon", read, first_s=0.01), SideThread("late", read, first_s=60.0)
    assert wait_until(lambda: len(calls) == 1, LIMIT_S)
    late.wake()
    assert wait_until(lambda: len(calls) == 2, LIMIT_S)
    assert soon.close(LIMIT_S) and late.close(LIMIT_S)


# ---- one of a kind -----------------------------------------------------------------------------
def test_work_that_hangs_blocks_only_its_kind(gate: threading.Event) -> None:
    kinds, outcomes = ThreadPerKind(), Outcomes()
    kinds.submit("a", gate.wait, outcomes.then)
    kinds.submit("a", lambda: 2, outcomes.then)
    kinds.submit("b", lambda: 3, outcomes.then)
    _run_until(kinds, outcomes, 2)
    assert sorted(outcomes, key=str) == [(3, ""), (None, "the previous a is still running")]
    assert kinds.is_busy("a") and not kinds.is_busy("b")
    gate.set()
    assert select.select([kinds.done_fd], [], [], LIMIT_S)[0]
    assert kinds.is_busy("a"), "its outcome is not known yet"
    _run_until(kinds, outcomes, 3)
    kinds.submit("a", lambda: 4, outcomes.then)
    _run_until(kinds, outcomes, 4)
    assert outcomes[2:] == [(True, ""), (4, "")]


def test_a_thread_that_cannot_be_started_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    kinds, outcomes = ThreadPerKind(), Outcomes()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        kinds.submit("a", lambda: 1, outcomes.then)
    _run_until(kinds, outcomes, 1)
    kinds.submit("a", lambda: 2, outcomes.then)
    _run_until(kinds, outcomes, 2)
    assert outcomes == [(None, "can't start new thread"), (2, "")]
