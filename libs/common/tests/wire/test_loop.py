"""Timers without drift or busy loops, sources that break, signals that wake the poll."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq
from headway.common.wire import loop as loop_module
from headway.common.wire.loop import Loop, Throttle, Timer


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop(on_stop=lambda _is_signal: made.end())
    made.after(60.0, made.end)  # a test that waits in vain ends, and fails
    yield made
    made.close()


def test_a_timer_that_is_late_keeps_its_beat_and_skips_what_it_missed() -> None:
    timer = Timer(due_s=10.0, period_s=0.5, callback=lambda: None)
    assert timer.next_due_s(10.0) == 10.5
    assert timer.next_due_s(10.4) == 10.5
    assert timer.next_due_s(10.5) == 11.0
    assert timer.next_due_s(13.2) == 13.5


def test_a_timer_slower_than_its_period_leaves_the_others_their_turn(loop: Loop) -> None:
    turns = {"slow": 0, "other": 0}

    def slow() -> None:
        turns["slow"] += 1
        time.sleep(0.005)

    def other() -> None:
        turns["other"] += 1
        if turns["other"] == 10:
            loop.end()

    loop.every(0.001, slow)
    loop.every(0.001, other)
    loop.run()
    assert turns["other"] == 10
    assert turns["slow"] <= 11


def test_waiting_for_a_timer_takes_no_processor_time(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = []
    poll = loop._poll
    monkeypatch.setattr(loop, "_poll", lambda: polls.append(1) or poll())
    loop.after(0.5, loop.end)
    loop.run()
    assert len(polls) <= 5


def test_the_wait_ends_with_the_earliest_timer(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    poll = loop._poller.poll
    monkeypatch.setattr(loop._poller, "poll", lambda ms: (waits.append(ms), poll(ms))[1])
    for delay_s in (5.0, 0.05, 3.0):
        loop.after(delay_s, loop.end)
    loop.run()
    assert waits and max(waits) <= 51


def test_a_timer_that_raises_is_counted_and_called_again(loop: Loop) -> None:
    def fail() -> None:
        if loop.errors.total() == 2:
            loop.end()
        raise ValueError("oops")

    loop.every(0.001, fail)
    loop.run()
    assert list(loop.errors.values()) == [3]


def test_a_cancelled_timer_is_not_called_and_a_single_one_only_once(loop: Loop) -> None:
    called = []
    loop.every(0.001, lambda: called.append("cancelled")).cancel()
    loop.after(0.001, lambda: called.append("once"))
    loop.after(0.05, loop.end)
    loop.run()
    assert called == ["once"]


@pytest.mark.parametrize("period_s", [0.0, -1.0, 0.0001, float("nan")])
def test_a_period_that_would_spin_is_refused(loop: Loop, period_s: float) -> None:
    with pytest.raises(ValueError, match=r"at least 0\.001"):
        loop.every(period_s, lambda: None)


def test_a_source_whose_callback_raises_rests_instead_of_spinning(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "REST_S", 0.1)
    reader, writer = socket.socketpair()

    def fail() -> None:
        if loop.errors.total() == 2:
            loop.end()
        raise OSError("broken")

    with reader, writer:
        writer.send(b"x")  # never read: the source stays ready
        loop.watch(reader.fileno(), fail)
        start_s = time.monotonic()
        loop.run()
    assert loop.errors.total() == 3
    assert time.monotonic() - start_s >= 0.2


def test_a_socket_closed_without_unwatch_is_dropped_not_taken_for_standard_input(
    loop: Loop,
) -> None:
    called = []
    standard_input = os.dup(0)
    reader, writer = os.pipe()
    os.write(writer, b"x")
    os.dup2(reader, 0)
    try:
        with zmq.Context() as context:
            closed = context.socket(zmq.ROUTER)
            loop.watch(closed, lambda: called.append(1))
            closed.close()
            loop.after(0.05, loop.end)
            loop.run()
    finally:
        os.dup2(standard_input, 0)
        for descriptor in (standard_input, reader, writer):
            os.close(descriptor)
    assert called == []
    assert loop.errors["closed_source"] == 1


def test_a_descriptor_closed_without_unwatch_is_dropped(loop: Loop) -> None:
    called = []
    reader, writer = os.pipe()
    loop.watch(reader, lambda: called.append(1))
    os.close(reader)
    os.close(writer)
    loop.after(0.05, loop.end)
    loop.run()
    assert called == []
    assert loop.errors["closed_source"] == 1


def test_a_source_unwatched_by_an_earlier_callback_is_not_served_any_more(loop: Loop) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    served: list[int] = []

    def serve(index: int) -> Callable[[], None]:
        def callback() -> None:
            served.append(index)
            loop.unwatch(pairs[1 - index][0].fileno())
            loop.end()

        return callback

    for index, (reader, writer) in enumerate(pairs):
        writer.send(b"x")
        loop.watch(reader.fileno(), serve(index))
    loop.run()
    assert len(served) == 1
    for pair in pairs:
        for end in pair:
            end.close()


def test_stop_from_another_thread_wakes_the_poll(loop: Loop) -> None:
    thread = threading.Timer(0.05, loop.stop)
    thread.start()
    loop.run()
    thread.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_wakes_the_poll_and_its_handler_is_given_back(number: signal.Signals) -> None:
    seen: list[bool] = []

    def on_stop(is_signal: bool) -> None:
        seen.append(is_signal)
        loop.end()

    loop = Loop(on_stop)
    before = signal.getsignal(number)
    loop.after(0.02, lambda: os.kill(os.getpid(), number))
    loop.after(60.0, loop.end)
    loop.run()
    loop.close()
    assert seen == [True]
    assert signal.getsignal(number) is before


def test_other_signals_of_the_service_do_not_end_it(loop: Loop) -> None:
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: None)
    try:
        loop.after(0.01, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        late = []
        loop.after(0.1, lambda: late.append(1))
        loop.after(0.11, loop.end)
        loop.run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert late == [1]


def test_the_first_complaint_of_each_kind_passes_then_one_a_period_with_the_number_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(loop_module.time, "monotonic", lambda: now[0])
    complaints = Throttle(period_s=10.0)
    assert complaints.admit("a") == 0
    assert [complaints.admit("a") for _ in range(3)] == [None] * 3
    assert complaints.admit("b") == 0
    now[0] += 10.0
    assert complaints.admit("a") == 3
    now[0] += 10.0
    assert complaints.admit("a") == 0


def test_messages_that_arrive_close_together_are_served_in_one_turn() -> None:
    """With ``gather_s`` many senders cost a turn of the loop now and then, not one a message."""
    loop = Loop(on_stop=lambda _is_signal: loop.end(), gather_s=0.05)
    loop.after(60.0, loop.end)
    reader, writer = socket.socketpair()
    turns: list[int] = []

    def read() -> None:
        turns.append(len(reader.recv(4096)))
        if sum(turns) == 100:
            loop.end()

    def write() -> None:
        for _ in range(100):
            writer.send(b"x")
            time.sleep(0.001)

    loop.watch(reader.fileno(), read)
    sender = threading.Thread(target=write)
    sender.start()
    begin_s = time.monotonic()
    loop.run()
    lasted_s = time.monotonic() - begin_s
    sender.join()
    loop.close()
    reader.close()
    writer.close()
    assert sum(turns) == 100
    assert len(turns) <= lasted_s / 0.05 + 1
