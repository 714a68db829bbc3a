"""A single-threaded poll loop of sources, timers and signals.

Timers do not drift; signals arrive through a wakeup descriptor.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import zmq
from headway.common.log import complain, get_logger

MIN_PERIOD_S = 0.001
MAX_WAIT_S = 1.0
REST_S = 1.0  # of a source whose callback raised
COMPLAINT_PERIOD_S = 10.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STOP = b"\0"

Source = int | zmq.Socket[Any]

_log = get_logger("loop")


class Throttle:
    """Allows one warning per kind and period.

    A flood of bad input then does not fill the disk.
    """

    def __init__(self, period_s: float = COMPLAINT_PERIOD_S) -> None:
        self._period_s = period_s
        self._passed_at_s: dict[str, float] = {}
        self._num_suppressed: dict[str, int] = {}

    def admit(self, kind: str) -> int | None:
        """How many of this kind were suppressed since the last one that passed.

        None if this one is suppressed too.
        """
        now_s = time.monotonic()
        if now_s - self._passed_at_s.get(kind, float("-inf")) < self._period_s:
            self._num_suppressed[kind] = self._num_suppressed.get(kind, 0) + 1
            return None
        self._passed_at_s[kind] = now_s
        return self._num_suppressed.pop(kind, 0)


class Timer:
    """A callback with its next due time; ``cancel`` may be called anywhere in the loop's thread."""

    def __init__(
        self, due_s: float, period_s: float | None, callback: Callable[[], object]
    ) -> None:
        self.due_s = due_s
        self.period_s = period_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def next_due_s(self, now_s: float) -> float:
        """The next multiple of the period after ``now_s``.

        There is no drift, and missed turns are skipped.
        """
        assert self.period_s is not None
        missed = max(0, int((now_s - self.due_s) // self.period_s))
        return self.due_s + (missed + 1) * self.period_s


class Loop:
    """A poll loop: ``run`` polls until ``end``.

    ``stop`` (from any thread), SIGTERM and SIGINT call ``on_stop`` in it.

    ``gather_s``: turns that serve a source begin at least this far apart, so that what arrives
    meanwhile is served together. Waking up for each message costs more than handling it. A turn
    that takes longer, because much has arrived, is followed by the next one at once.

    ``on_stop`` gets True for a signal. Signals are handled only when ``run`` is called in the main
    thread; the earlier handlers are restored when it returns.
    """

    def __init__(self, on_stop: Callable[[bool], None], gather_s: float = 0.0) -> None:
        self._gather_s = gather_s
        self.errors: Counter[str] = Counter()
        self.is_ending = False
        self._on_stop = on_stop
        self._throttle = Throttle()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._callbacks: dict[Source, Callable[[], object]] = {}
        self._poller = zmq.Poller()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.watch(self._reader.fileno(), self._woken)

    def every(self, period_s: float, callback: Callable[[], object]) -> Timer:
        if not period_s >= MIN_PERIOD_S:
            raise ValueError(f"a timer period of {period_s} s; use at least {MIN_PERIOD_S} s")
        return self._schedule(Timer(time.monotonic(), period_s, callback))

    def after(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return self._schedule(Timer(time.monotonic() + delay_s, None, callback))

    def watch(self, source: Source, callback: Callable[[], object]) -> None:
        self._callbacks[source] = callback
        self._poller.register(source, zmq.POLLIN)

    def unwatch(self, source: Source) -> None:
        if self._callbacks.pop(source, None) is not None:
            self._mute(source)

    def stop(self) -> None:
        # A full pipe already wakes the loop; after close there is nothing left to wake.
        with contextlib.suppress(BlockingIOError, OSError):
            self._writer.send(_STOP)

    def end(self) -> None:
        self.is_ending = True

    def guard(self, callback: Callable[[], object]) -> object:
        """Run ``callback``; an Exception is logged, counted, and gives None."""
        try:
            return callback()
        except Exception:
            self.errors[_name(callback)] += 1
            suppressed = self._throttle.admit(_name(callback))
            if suppressed is not None:
                complain(
                    _log.exception,
                    "callback failed, the service continues",
                    callback=_name(callback),
                    suppressed=suppressed,
                )
            return None

    def run(self) -> None:
        with self._signals():
            while not self.is_ending:
                ready = self._poll()
                begin_s = time.monotonic()
                for source, events in ready:
                    self._serve(source, events)
                self._run_due_timers()
                if ready and self._gather_s and not self.is_ending:
                    time.sleep(max(0.0, begin_s + self._gather_s - time.monotonic()))

    def close(self) -> None:
        self._callbacks.clear()
        self._reader.close()
        self._writer.close()

    def _schedule(self, timer: Timer) -> Timer:
        heapq.heappush(self._timers, (timer.due_s, next(self._order), timer))
        return timer

    def _run_due_timers(self) -> None:
        now_s = time.monotonic()
        due: list[Timer] = []
        while self._timers and self._timers[0][0] <= now_s:
            due.append(heapq.heappop(self._timers)[2])
        # taken out first, so that a slow timer that is due again waits until the
        # sockets had their turn
        for timer in due:
            if timer.is_cancelled or self.is_ending:
                continue
            self.guard(timer.callback)
            if timer.period_s is not None and not timer.is_cancelled:
                timer.due_s = timer.next_due_s(time.monotonic())
                self._schedule(timer)

    def _poll(self) -> list[tuple[Source, int]]:
        wait_s = MAX_WAIT_S
        if self._timers:
            wait_s = min(wait_s, max(0.0, self._timers[0][0] - time.monotonic()))
        try:
            return self._poller.poll(int(wait_s * 1000) + (1 if wait_s > 0 else 0))
        except zmq.ZMQError:
            if not self._forget_closed():
                raise
            return []

    def _serve(self, source: Source, events: int) -> None:
        callback = self._callbacks.get(source)
        if callback is None or events & zmq.POLLERR:
            # Removed by an earlier callback of this turn; or closed, which would spin the
            # loop: zmq_poll treats a closed socket as descriptor 0, and a closed
            # descriptor is always ready.
            self._forget_closed()
        if self.is_ending or callback is None or source not in self._callbacks:
            return
        errors = self.errors[_name(callback)]
        self.guard(callback)
        if self.errors[_name(callback)] > errors and source in self._callbacks:
            self._mute(source)
            self.after(REST_S, lambda: self._unmute(source))

    def _mute(self, source: Source) -> None:
        with contextlib.suppress(KeyError):
            self._poller.unregister(source)

    def _unmute(self, source: Source) -> None:
        if source in self._callbacks:
            self._poller.register(source, zmq.POLLIN)

    def _forget_closed(self) -> int:
        """Drop the sources that were closed before ``unwatch``; returns how many."""
        closed = [source for source in self._callbacks if _is_closed(source)]
        for source in closed:
            name = _name(self._callbacks[source])
            complain(_log.error, "a watched source was closed", callback=name)
            self.errors["closed_source"] += 1
            self.unwatch(source)
        return len(closed)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            # a service's own SIGCHLD handler, say, leaves a byte too
            for byte in self._reader.recv(4096):
                if byte == _STOP[0] or byte in SIGNALS:
                    self._on_stop(byte != _STOP[0])

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # Python runs the handler at its next bytecode, which a blocking poll delays; the wakeup
        # descriptor ends the poll.
        before = {number: signal.signal(number, _ignore_signal) for number in SIGNALS}
        wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Its byte on the wakeup descriptor does the work."""


def _is_closed(source: Source) -> bool:
    if isinstance(source, zmq.Socket):
        return bool(source.closed)
    try:
        os.fstat(source)
    except OSError:
        return True
    return False


def _name(callback: Callable[[], object]) -> str:
    return getattr(callback, "__qualname__", type(callback).__name__)
