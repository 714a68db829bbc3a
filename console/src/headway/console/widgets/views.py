"""The live console of a run as one notebook widget: charts, timeline, rank grid, steering; no logic.

Arrays cross as raw float32 bytes, everything else as small lists; all of it is state in traits, so that a
page loaded anew shows the same.
"""

from __future__ import annotations

import shlex
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from headway.common.errors import InputError
from headway.common.plan.schedule.actions import Kind
from headway.console.run import Run
from headway.console.widgets.session import Picture, Session
from headway.trainer.config import check_setting

try:
    import anywidget
    import traitlets
except ModuleNotFoundError as error:
    raise ImportError(
        f"the live console needs {error.name}, which is not installed; "
        "run `make setup-lab` in the checkout, or `pip install './console[notebooks]'`"
    ) from None

OPERATIONS = frozenset({"pause", "resume", "checkpoint", "stop", "set", "unset", "inject"})
MAX_BARS = 40_000
MAX_POINTS = 4_000
HIDDEN = (Kind.STEP.name,)
"""A frame around the others; it would hide them."""


class RunConsole(anywidget.AnyWidget):  # type: ignore[misc]
    """``RunConsole(run)`` at the end of a cell shows the run and keeps showing it; ``close`` ends that."""

    _esm = Path(__file__).with_name("console.js")
    _css = Path(__file__).with_name("console.css")

    facts = traitlets.Dict().tag(sync=True)
    """name, line, step, steps, phase, paused, generation, lr."""
    curve = traitlets.Bytes().tag(sync=True)
    """float32 [points, 3]: step, loss, tokens per second."""
    validation = traitlets.Bytes().tag(sync=True)
    """float32 [points, 2]: completed steps, loss."""
    bars = traitlets.Bytes().tag(sync=True)
    """float32 [actions, 4]: rank, start_s, end_s, kind (+ 100 for a wait); sorted by rank and start."""
    bands = traitlets.List().tag(sync=True)
    """Recoveries: [start_s, end_s, reason] on the clock of ``bars``."""
    ranks = traitlets.List().tag(sync=True)
    """One dict per rank: rank, node, pid, status, step."""
    kinds = traitlets.Dict().tag(sync=True)
    """Kind number -> name."""
    news = traitlets.List().tag(sync=True)
    """What happened, newest last."""
    command = traitlets.Dict().tag(sync=True)
    """Set by the page: {id, operation, ...}; the same id is carried out once."""
    answer = traitlets.Dict().tag(sync=True)
    """What became of a command: {id, text, is_error, cli}."""

    def __init__(self, run: Run | Session, **options: Any) -> None:
        super().__init__(kinds={str(kind.value): kind.name for kind in Kind})
        self._owns_session = isinstance(run, Run)
        self.session = Session(run, **options).start() if isinstance(run, Run) else run
        self._done: set[str] = set()
        self.observe(self._on_command, names="command")
        self.session.subscribe(self.show)

    def close(self) -> None:
        """Stop watching and take the widget away; the run is left alone."""
        if self._owns_session:
            self.session.close()
        super().close()

    def show(self, picture: Picture) -> None:
        """Show a picture; called by the session's thread."""
        bars, origin_s = _bars(picture.events)
        progress = picture.progress
        with self.hold_sync():
            self.facts = {
                **{
                    key: getattr(progress, key)
                    for key in ("name", "step", "steps", "phase", "paused", "lr")
                },
                "generation": progress.generation,
                "line": progress.line(),
            }
            self.curve = _curve(picture.metrics)
            self.validation = _bytes(picture.evaluations.select("step", "loss"))
            self.bars = bars
            self.bands = [
                [start - origin_s, None if end is None else end - origin_s, reason]
                for start, end, reason in picture.bands
            ]
            if progress.status is not None:
                self.ranks = [
                    {
                        "rank": r.rank,
                        "node": r.node,
                        "pid": r.pid,
                        "status": r.status,
                        "step": r.step,
                    }
                    for r in progress.status.ranks
                ]
            self.news = list(picture.news)

    # ---- steering -----------------------------------------------------------------------------
    def _on_command(self, change: dict[str, Any]) -> None:
        """A button was pressed. Runs on whatever thread the kernel chose, so it only hands over."""
        order = dict(change["new"])
        number = str(order.pop("id", ""))
        if not number or number in self._done:
            return
        self._done.add(number)
        operation = str(order.pop("operation", ""))
        if operation not in OPERATIONS:
            self.answer = {
                "id": number,
                "text": f"unknown operation {operation!r}",
                "is_error": True,
                "cli": "",
            }
            return
        cli = as_cli(self.session.name, operation, order)
        self.answer = {"id": number, "text": f"{operation} ...", "is_error": False, "cli": cli}
        known = {
            key: order[key] for key in ("name", "value", "fault", "rank", "node") if key in order
        }
        if refusal := self._refusal(operation, known):
            self.answer = {"id": number, "text": refusal, "is_error": True, "cli": cli}
            return
        done = self.session.submit(operation, **known)
        done.add_done_callback(lambda future: self._answer(number, operation, cli, future))

    def _refusal(self, operation: str, options: dict[str, Any]) -> str:
        """Why a setting is not sent, "" if it is."""
        if operation != "set":
            return ""
        try:
            check_setting(
                str(options.get("name", "")), float(options.get("value", 0.0)), self.session.config
            )
        except (InputError, ValueError) as error:
            return f"set: {error}"
        return ""

    def _answer(self, number: str, operation: str, cli: str, done: Future[int]) -> None:
        if done.cancelled():
            text, is_error = f"{operation}: the session was closed", True
        elif (error := done.exception()) is not None:
            text, is_error = f"{operation}: {error}", True
        else:
            text, is_error = f"{operation}: sent", False
        self.answer = {"id": number, "text": text, "is_error": is_error, "cli": cli}


def as_cli(run: str, operation: str, options: dict[str, Any]) -> str:
    """The shell command that does the same as a button."""
    words = ["headway", operation, run]
    if operation == "set":
        words.append(f"{options.get('name', 'lr')}={options.get('value', 0.0):g}")
    if operation == "unset":
        words.append(str(options.get("name", "lr")))
    if operation == "inject":
        words += [str(options.get("fault", "kill")), "--rank", str(options.get("rank", 0))]
    return shlex.join(words)


def _curve(metrics: pl.DataFrame) -> bytes:
    """Thinned evenly to ``MAX_POINTS``, always with the newest."""
    thin = metrics.reverse().gather_every(max(1, -(-len(metrics) // MAX_POINTS))).reverse()
    return _bytes(thin.select("step", "loss", pl.col("tokens") / pl.col("duration_s")))


def _bars(events: pl.DataFrame) -> tuple[bytes, float]:
    """The newest closed actions as bytes, and the second on the host's clock that their 0 stands for."""
    closed = events.filter(pl.col("end_ns").is_not_null() & ~pl.col("action").is_in(HIDDEN))
    closed = closed.sort("start_ns").tail(MAX_BARS).sort("rank", "start_ns")
    first = closed["start_ns"].min()
    if not isinstance(first, int):
        return b"", 0.0
    rows = closed.select(
        "rank",
        ((pl.col("start_ns") - first) * 1e-9).alias("start_s"),
        ((pl.col("end_ns") - first) * 1e-9).alias("end_s"),
        (pl.col("kind") + 100 * pl.col("waiting").cast(pl.Int64)).alias("kind"),
    )
    return _bytes(rows), first * 1e-9


def _bytes(table: pl.DataFrame) -> bytes:
    return np.ascontiguousarray(table.to_numpy(), dtype="<f4").tobytes()
