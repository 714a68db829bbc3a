"""A run on which the faults of a plan are struck, one after the other, whatever its place."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from headway.common.errors import HeadwayError
from headway.common.wire.messages.driver import Status
from headway.console.run import TERMINAL_OUTCOMES, Run
from headway.testkit.journal import query

from benchmarks.digest import final_digest
from benchmarks.drill.catalogue import Strike
from benchmarks.drill.look import missing_steps, seconds_until

END_LIMIT_S = 3600.0


class DrilledRun(ABC):
    """What each place does in its own way. Methods raise HeadwayError, AssertionError or
    TimeoutError when the run does not get there."""

    run: Run
    now: Strike
    """The fault that is struck, or was last."""
    before: Status
    """Of the run, before that."""

    @abstractmethod
    def ready(self) -> Status:
        """Wait until the run trains with all that it should have; called before each fault."""

    @abstractmethod
    def strike(self) -> None:
        """Strike ``now``, and fill in the rest of it; returns once it is broken."""

    @abstractmethod
    def await_steps(self) -> None:
        """Wait until all ranks step again, while a fault that lasts is still there."""

    @abstractmethod
    def undo(self) -> None:
        """Wait until a fault that lasts is over, and bring back what is lost."""

    @abstractmethod
    def row(self) -> dict[str, Any]:
        """Wait until the run is whole; what it has cost, for the judge and the report."""

    def watched(self) -> contextlib.AbstractContextManager[Any]:
        """Around each fault."""
        return contextlib.nullcontext()

    def release(self) -> None:  # noqa: B027
        """End what lasts, whatever has happened."""

    def sample(self) -> None:  # noqa: B027
        """Called between two faults."""

    def settle(self, num_faults: int) -> dict[str, Any]:
        """What is to be reported of the whole run before it ends, after so many faults."""
        return {"num_struck": num_faults}

    def end(self) -> str:
        """Wait until the run is over; returns its outcome."""
        seconds_until(lambda: self.run.outcome in TERMINAL_OUTCOMES, END_LIMIT_S)
        return self.run.outcome or "unfinished"

    def undisturbed(self) -> str:
        """The digest of the run at its end, if no fault is struck."""
        outcome = self.end()
        assert outcome == "finished", outcome
        return final_digest(self.run)


def recover(place: DrilledRun, strike: Strike) -> dict[str, Any]:
    """Strike one fault and wait until the run is whole again; its row of the report."""
    place.now = strike
    place.before = place.ready()
    with place.watched():
        strike.struck_at_s = time.monotonic()
        try:
            place.strike()
            place.await_steps()
            strike.again_at_s = time.monotonic()
            place.undo()
        finally:
            place.release()
        row = {
            "fault": str(strike),
            **asdict(strike.fault),
            "healthy_s": strike.again_at_s - strike.struck_at_s,
            **place.row(),
        }
    seconds = {key.removesuffix("_s"): row[key] for key in row if key.endswith("_s") and row[key]}
    times = [f"{name} {value:.2f}" for name, value in seconds.items()]
    print(f"  {strike}: {', '.join(times)} s", flush=True)
    return row


def drilled(place: DrilledRun, strikes: Sequence[Strike]) -> dict[str, Any]:
    """Strike every fault, look at what is left, wait for the end, and report."""
    rows, stopped_by = [], ""
    try:
        for strike in strikes:
            place.sample()
            rows.append(recover(place, strike))
        place.sample()
    except (HeadwayError, AssertionError, TimeoutError) as error:
        at = strikes[len(rows)] if len(rows) < len(strikes) else "the end"
        stopped_by = f"{at}: {error}"[:600]
    settled = place.settle(len(rows))
    outcome = "unfinished" if stopped_by else place.end()
    is_over = outcome == "finished"
    tables = ("events", "inputs")
    return {
        "run": place.run.name,
        "outcome": outcome,
        "stopped_by": stopped_by,
        "faults": rows,
        "num_faults": len(strikes),
        **settled,
        "missing_steps": missing_steps(place.run, place.run.config.train.steps if is_over else 0),
        "epochs": {name: _epochs(place.run, name) for name in tables},
        "digest": final_digest(place.run) if is_over else "",
    }


def _epochs(run: Run, table: str) -> list[int]:
    """Epochs of the rows of a table of the journal, without repetitions in a row."""
    rows = query(run, f"SELECT epoch FROM {table} ORDER BY id")
    return [epoch for (epoch,), _ in groupby(rows)]
