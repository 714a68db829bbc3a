"""Channels: calls in order, waits that an abort ends."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.interface import Aborted


@pytest.fixture
def channels() -> Iterator[Channels]:
    opened = Channels()
    yield opened
    opened.close()


def _poll(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never came true"
        time.sleep(0.001)


class _Held:
    """Work that ends when it is let go."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.waited_for = threading.Event()
        self.go = threading.Event()

    def start(self) -> _Held:
        self.started.set()
        return self

    def wait(self) -> str:
        self.waited_for.set()
        assert self.go.wait(60)
        return "done"


def test_calls_of_one_channel_run_in_the_order_given_and_return_their_values(
    channels: Channels,
) -> None:
    order: list[int] = []
    calls = [channels.open("a").call(lambda i=i: order.append(i) or i) for i in range(50)]
    assert [call.result() for call in calls] == list(range(50))
    assert order == list(range(50))


def test_a_failing_call_raises_at_its_own_wait_and_harms_no_other(channels: Channels) -> None:
    def fail() -> None:
        raise OSError("peer is gone")

    bad, good = channels.open("a").call(fail), channels.open("a").call(lambda: 5)
    with pytest.raises(RuntimeError, match="OSError: peer is gone"):
        bad.wait()
    assert good.result() == 5


def test_an_operation_is_started_while_an_earlier_one_is_already_being_waited_for(
    channels: Channels,
) -> None:
    first, second = _Held(), _Held()
    channel = channels.open("receive")
    calls = [channel.launch(first.start)]
    assert first.waited_for.wait(20)
    calls.append(channel.launch(second.start))
    assert second.started.wait(20), "the second receive was not posted before the first ended"
    second.go.set()
    first.go.set()
    assert [call.result() for call in calls] == ["done", "done"]


def test_abort_frees_a_waiting_main_thread_although_the_operation_stays_stuck(
    channels: Channels,
) -> None:
    stuck = _Held()
    call = channels.open("a").launch(stuck.start)
    assert stuck.started.wait(20)
    threading.Thread(target=channels.abort).start()
    with pytest.raises(Aborted):
        call.wait()
    assert not stuck.go.is_set()
    stuck.go.set()


def test_after_an_abort_no_call_begins_and_finished_ones_raise_too(channels: Channels) -> None:
    call = channels.open("a").call(lambda: 1)
    other = channels.open("a")
    other.call(lambda: 2).wait()
    channels.abort()
    with pytest.raises(Aborted):
        call.wait()
    with pytest.raises(Aborted):
        other.call(lambda: 3)
    with pytest.raises(Aborted):
        channels.open("b")


def test_abort_runs_each_registered_action_once(channels: Channels) -> None:
    ran: list[int] = []
    channels.on_abort(lambda: ran.append(1))
    channels.abort()
    channels.abort()
    assert ran == [1]


def test_an_action_that_fails_keeps_no_other_from_running(channels: Channels) -> None:
    ran: list[int] = []

    def fail() -> None:
        ran.append(2)
        raise RuntimeError("the transport is gone")

    for action in (lambda: ran.append(1), fail, lambda: ran.append(3)):
        channels.on_abort(action)
    channels.abort()
    assert sorted(ran) == [1, 2, 3]


def test_a_second_wait_on_a_finished_call_returns_at_once(channels: Channels) -> None:
    call = channels.open("a").call(lambda: 1)
    call.wait()
    call.wait()


def test_closed_channels_leave_no_thread(channels: Channels) -> None:
    names = {f"channel-leftover-{i}" for i in range(3)}
    for name in list(names):
        work = _Held()
        work.go.set()
        channels.open(name.removeprefix("channel-")).launch(work.start).wait()
        names.add(f"{name}-wait")
    assert names <= {thread.name for thread in threading.enumerate()}
    channels.close()
    _poll(lambda: not names & {thread.name for thread in threading.enumerate()})


def test_what_a_call_used_is_freed_without_a_garbage_collection(channels: Channels) -> None:
    class Group:
        def fail(self) -> None:
            raise ValueError("broken")

    group = Group()
    gone = weakref.ref(group)
    gc.disable()
    try:
        call = channels.open("a").call(group.fail)
        del group
        with pytest.raises(RuntimeError):
            call.wait()
        del call
        _poll(lambda: gone() is None)
    finally:
        gc.enable()


def test_a_wait_shows_while_the_transport_is_busy_and_not_for_what_is_done() -> None:
    class Shown:
        def __init__(self) -> None:
            self.waits: list[str] = []
            self.held = _Held()

        def __enter__(self) -> None:
            self.waits.append("begun")
            self.held.go.set()

        def __exit__(self, *_: object) -> None:
            self.waits.append("ended")

    shown = Shown()
    channels = Channels(shown)
    call = channels.open("a").launch(shown.held.start)
    call.wait()
    assert shown.waits == ["begun", "ended"]
    done = channels.open("a").call(lambda: 1)
    _poll(done.done)
    assert done.result() == 1 and shown.waits == ["begun", "ended"]
    aborted = channels.open("b").launch(_Held().start)
    channels.abort()
    with pytest.raises(Aborted):
        aborted.wait()
    assert shown.waits[2:] in ([], ["begun", "ended"])
    channels.close()
