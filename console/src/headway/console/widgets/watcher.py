"""A run, watched and steered from a thread of its own: a busy notebook cell freezes nothing.

The pump thread alone talks to the run: it takes pictures, calls the subscribers, and carries out
the commands that any thread hands to it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.common.errors import DeadlineError, HeadwayError
from headway.console.gateway.remote_run import open_run
from headway.console.run import Run
from headway.console.steering.methods import OPERATIONS
from headway.console.widgets.picture import Picture
from headway.console.widgets.picture_reader import PictureReader


@dataclass(frozen=True)
class _Order:
    operation: str
    arguments: dict[str, Any]
    done: Future[int] = field(default_factory=Future)


class RunWatcher:
    """``start`` begins the pump, ``close`` ends it. All methods may be called from any thread.

    Args:
        run: what to watch.
        period_s: seconds between two pictures.
        window_s: seconds of flight records in a picture.
    """

    def __init__(self, run: Run, *, period_s: float = 0.5, window_s: float = 20.0) -> None:
        self.path: Path = run.path
        self.name = run.name
        self._period_s, self._window_s = period_s, window_s
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._subscribers: dict[Callable[[Picture], None], Callable[[str], None]] = {}
        """What is called with each picture -> with each change of ``error``."""
        self.selected = -1
        """The rank whose log lines come with each picture, -1 for none; any thread may set it."""
        self._changed = threading.Condition()
        self._picture: Picture | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._pump, name=f"console-{run.name}", daemon=True)
        self.error: str = ""
        """Why the newest picture could not be taken, empty when all is well."""

    def start(self) -> RunWatcher:
        """Begin to take pictures; returns at once."""
        self._thread.start()
        return self

    def close(self, timeout_s: float = 10.0) -> None:
        """End the pump; orders not yet carried out are cancelled."""
        self._is_closed = True
        self._orders.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def __enter__(self) -> RunWatcher:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def subscribe(
        self,
        callback: Callable[[Picture], None],
        on_error: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Have ``callback`` called with every picture, on the pump thread; it must not block.

        ``on_error`` is called with ``error`` whenever that changes.
        """
        self._subscribers[callback] = on_error

    def unsubscribe(self, callback: Callable[[Picture], None]) -> None:
        """No more pictures for ``callback``, nor errors for what was subscribed with it."""
        self._subscribers.pop(callback, None)

    def submit(self, operation: str, **arguments: Any) -> Future[int]:
        """Hand an operation to the pump; the future holds its sequence number or why it failed.

        Args:
            operation: a name of ``steering.OPERATIONS``.
            arguments: those of the method of ``Run`` with that name.
        """
        order = _Order(operation, arguments)
        if self._is_closed:
            order.done.set_exception(
                HeadwayError("the watcher is closed", remedy="start another one")
            )
        else:
            self._orders.put(order)
        return order.done

    def wait_for(self, condition: Callable[[Picture], bool], timeout_s: float = 60.0) -> Picture:
        """Block until a picture satisfies ``condition``.

        Raises:
            DeadlineError: none did in time.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._picture is None or not condition(self._picture):
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    at = "nothing yet" if self._picture is None else self._picture.progress.line()
                    raise DeadlineError(
                        f"run {self.name} did not reach that state in {timeout_s:g} s: {at}",
                        remedy=self.error or "see `headway status`",
                    )
            return self._picture

    # ---- the pump thread ----------------------------------------------------------------------
    def _pump(self) -> None:
        run, reader = open_run(self.path), None  # a connection of this thread's own
        while not self._is_closed:
            began_s = time.monotonic()
            try:
                if reader is None:
                    reader = PictureReader(run, self._window_s)
                self._publish(reader.read(self.selected))
                self._report("")
            except Exception as error:
                # a picture missed is no reason to stop watching; the next may work
                self._report(f"{type(error).__name__}: {error}")
            self._carry_out(run, began_s + self._period_s)
        if reader is not None:
            reader.close()
        while not self._orders.empty():
            if (order := self._orders.get()) is not None:
                order.done.cancel()

    def _publish(self, picture: Picture) -> None:
        with self._changed:
            self._picture = picture
            self._changed.notify_all()
        for callback in list(self._subscribers):
            callback(picture)

    def _report(self, error: str) -> None:
        changed, self.error = error != self.error, error
        for on_error in list(self._subscribers.values()) if changed else ():
            with contextlib.suppress(Exception):  # it was to hear of a failure, not to add one
                on_error(error)

    def _carry_out(self, run: Run, until_s: float) -> None:
        """Take orders until the next picture is due; one taken brings the next picture forward."""
        with contextlib.suppress(queue.Empty):
            order = self._orders.get(timeout=max(0.0, until_s - time.monotonic()))
            if order is None or not order.done.set_running_or_notify_cancel():
                return
            try:
                method = OPERATIONS[order.operation].method
                order.done.set_result(method(run, **order.arguments))
            except Exception as error:  # handed to the thread that waits for it
                order.done.set_exception(error)
