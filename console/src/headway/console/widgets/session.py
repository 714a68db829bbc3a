"""A run, watched and steered from a thread of its own, so that a busy notebook cell freezes nothing.

The pump thread alone talks to the run: it takes pictures, calls the subscribers, and carries out the
commands that any thread hands to it.
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

import polars as pl
from headway.common.errors import DeadlineError, HeadwayError
from headway.console.analysis.episodes import load_journal, recoveries
from headway.console.analysis.metrics import current, load_evaluations, load_metrics
from headway.console.news import Teller
from headway.console.progress import Progress, read_progress
from headway.console.run import PAGE_RANKS, Run
from headway.console.widgets.tail import FlightTail

NEWS = 50
"""Lines of news kept."""


@dataclass(frozen=True)
class Picture:
    """A run at one moment, as frames; what a widget shows and a test looks at."""

    progress: Progress
    metrics: pl.DataFrame
    """One row per step, as ``analysis.metrics``."""
    evaluations: pl.DataFrame
    events: pl.DataFrame
    """Flight records of the newest seconds, as ``analysis.events``."""
    recoveries: pl.DataFrame
    news: tuple[str, ...] = ()
    bands: tuple[tuple[float, float | None, str], ...] = ()
    """Recoveries on the flight records' clock: seconds of fence and of stepping again, reason."""


@dataclass(frozen=True)
class _Order:
    operation: str
    options: dict[str, Any]
    done: Future[int] = field(default_factory=Future)


class Session:
    """``start`` begins the pump, ``close`` ends it. All methods may be called from any thread.

    Args:
        run: what to watch.
        period_s: seconds between two pictures.
        window_s: seconds of flight records in a picture.
    """

    def __init__(self, run: Run, *, period_s: float = 0.5, window_s: float = 20.0) -> None:
        self._path: Path = run.path
        self.name, self.config = run.name, run.config
        self._period_s, self._window_s = period_s, window_s
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._subscribers: list[Callable[[Picture], None]] = []
        self._changed = threading.Condition()
        self._picture: Picture | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._pump, name=f"console-{run.name}", daemon=True)
        self.error: str = ""
        """Why the newest picture could not be taken, empty when all is well."""

    def start(self) -> Session:
        """Begin to take pictures; returns at once."""
        self._thread.start()
        return self

    def close(self, timeout_s: float = 10.0) -> None:
        """End the pump; orders not yet carried out are cancelled."""
        self._is_closed = True
        self._orders.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def __enter__(self) -> Session:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def picture(self) -> Picture | None:
        """The newest picture, None before the first."""
        return self._picture

    def subscribe(self, callback: Callable[[Picture], None]) -> None:
        """Have ``callback`` called with every picture, on the pump thread; it must not block."""
        self._subscribers.append(callback)

    def submit(self, operation: str, **options: Any) -> Future[int]:
        """Hand a command to the pump; the future holds its sequence number or the driver's refusal.

        ``options`` are those of ``Run.command``: name, value, fault, rank, node, force.
        """
        order = _Order(operation, options)
        if self._is_closed:
            order.done.set_exception(
                HeadwayError("the session is closed", remedy="start another one")
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
                    raise DeadlineError(f"run {self.name} did not reach that state in {timeout_s:g} s: {at}",
                                        remedy=self.error or "see `headway status`")  # fmt: skip
            return self._picture

    # ---- the pump thread ----------------------------------------------------------------------
    def _pump(self) -> None:
        run = Run(self._path)
        tail, teller = FlightTail(self._path, self._window_s), Teller(run, since=0)
        news: list[str] = []
        while not self._is_closed:
            began_s = time.monotonic()
            try:
                news = [*news, *(line for _, line in teller.news())][-NEWS:]
                self._publish(_take(run, tail, tuple(news)))
                self.error = ""
            except Exception as error:
                # a picture missed is no reason to stop watching; the next may work
                self.error = f"{type(error).__name__}: {error}"
            self._carry_out(run, began_s + self._period_s)
        while not self._orders.empty():
            if (order := self._orders.get()) is not None:
                order.done.cancel()

    def _publish(self, picture: Picture) -> None:
        with self._changed:
            self._picture = picture
            self._changed.notify_all()
        for callback in list(self._subscribers):
            callback(picture)

    def _carry_out(self, run: Run, until_s: float) -> None:
        """Take orders until the next picture is due; one taken brings the next picture forward."""
        with contextlib.suppress(queue.Empty):
            order = self._orders.get(timeout=max(0.0, until_s - time.monotonic()))
            if order is None or not order.done.set_running_or_notify_cancel():
                return
            try:
                order.done.set_result(run.command(order.operation, **order.options))
            except Exception as error:  # handed to whoever waits for it
                order.done.set_exception(error)


def _take(run: Run, tail: FlightTail, news: tuple[str, ...]) -> Picture:
    progress = read_progress(run, run.peak, num_ranks=PAGE_RANKS)
    # what progress tells is in them
    metrics, journal, events = (load_metrics(run), load_journal(run), tail.read())
    return Picture(
        progress=progress,
        metrics=current(metrics),
        evaluations=load_evaluations(run),
        events=events,
        recoveries=recoveries(journal, events),
        news=news,
        bands=tuple(_bands(journal)),
    )


def _bands(journal: pl.DataFrame) -> list[tuple[float, float | None, str]]:
    bands: list[tuple[float, float | None, str]] = []
    is_open = False
    for at_s, name, reason in journal.select(
        "monotonic_s", "name", pl.col("fields").str.json_path_match("$.reason")
    ).iter_rows():
        if name == "fence" and not is_open:
            bands.append((at_s, None, reason or ""))
            is_open = True
        elif name == "stepping" and is_open:
            bands[-1] = (bands[-1][0], at_s, bands[-1][2])
            is_open = False
    return bands
