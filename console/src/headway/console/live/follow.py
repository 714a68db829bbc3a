"""Stay with a run until it is over: a progress bar on a terminal, a line now and then elsewhere.

With ``stop_on_interrupt`` the first Ctrl-C or SIGTERM stops the run with a checkpoint and keeps
following it; the second returns at once.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, TextIO

from headway.common.errors import DeadlineError, HeadwayError
from headway.common.output import to_json
from headway.common.printable import printable
from headway.console.display.formatting import clock
from headway.console.live.interrupts import Interrupts
from headway.console.live.news import News
from headway.console.live.progress import Progress, ProgressReader
from headway.console.machine.peak import Peak
from headway.console.run import TERMINAL_OUTCOMES, Run

POLL_S = 0.25


class Follower:
    """``follow`` returns the outcome, or ``detached``.

    Args:
        peak: what MFU is measured against; None leaves MFU out.
        as_json: one JSON object per line instead of text.
        every_s: seconds between lines without a terminal.
    """

    def __init__(
        self,
        run: Run,
        *,
        peak: Peak | None = None,
        as_json: bool = False,
        every_s: float = 5.0,
        out: TextIO | None = None,
    ) -> None:
        self._run, self._peak, self._every_s = run, peak, every_s
        self._again = run.hint("watch")
        self._out = out if out is not None else sys.stdout
        kind = _JsonView if as_json else _BarView if self._out.isatty() else _LineView
        self._view: _View = kind(self._out)
        self._interrupts = Interrupts()
        self._stop_sent = self._stop_accepted = False

    def follow(self, *, stop_on_interrupt: bool = False) -> str:
        """Block until the run is over.

        Raises:
            HeadwayError: none of its processes is running, and it is not over.
            KeyboardInterrupt: Ctrl-C without ``stop_on_interrupt``.
        """
        with (
            self._interrupts.counting() if stop_on_interrupt else contextlib.nullcontext(),
            self._view,
        ):
            try:
                return self._loop()
            except (FileNotFoundError, HeadwayError) as error:
                if self._run.folder.run_json.exists():
                    raise
                raise HeadwayError(
                    f"the folder of run {self._run.name} was removed: its start failed or was "
                    "cancelled, or somebody removed it",
                    remedy="the shell of its `headway run` has the reason",
                ) from error
            except BrokenPipeError:
                # The reader of a pipe ends by the same Ctrl-C: the run has to stop all the same.
                if self._interrupts.count and not self._stop_accepted:
                    self._run.stop()
                raise

    def _loop(self) -> str:
        news, shown_s = News(self._run, since=self._since()), float("-inf")
        reader = ProgressReader(self._run, self._peak)
        while True:
            outcome, live = self._run.outcome, self._run.live or self._run.starter is not None
            for at_unix_s, line in news.read():
                self._view.report(line, at_unix_s)
            now = time.monotonic()
            over = outcome in TERMINAL_OUTCOMES and not live
            if over or now - shown_s >= self._view.period(self._every_s):
                self._view.show(reader.read())
                shown_s = now
            if over:
                return outcome
            if not live and not self._run.outcome:
                raise self._run.crashed()
            if self._interrupts.count and self._react():
                return "detached"
            time.sleep(POLL_S)

    def _since(self) -> int | None:
        """Report from the newest driver's start on, or what comes if one is being started."""
        if self._run.starter is not None:
            return None
        started = self._run.records.newest_event("driver_started")
        return started - 1 if started else None

    # ---- Ctrl-C and SIGTERM ----------------------------------------------------------------------
    def _react(self) -> bool:
        """Act on Ctrl-C or SIGTERM; True to leave."""
        name = self._run.name
        if self._interrupts.count > 1:
            left = f"left {name}, which is stopping with a checkpoint"
            if not self._stop_accepted:
                left = f"left {name} running; stop it with {self._run.hint('stop')}"
            self._view.report(f"{left}; watch it with {self._again}")
            return True
        if not self._stop_sent:
            self._stop_sent = True
            self._view.report("stopping with a checkpoint; press Ctrl-C again to return at once")
            try:
                self._run.stop()
                self._stop_accepted = True
            except DeadlineError:  # its driver is being replaced: the next round tries again
                self._stop_sent = False
            except HeadwayError as error:
                if self._run.outcome not in TERMINAL_OUTCOMES:
                    self._view.report(f"not stopped: {error}")
        return False


class _View:
    """Where progress goes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __enter__(self) -> _View:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""

    def period(self, every_s: float) -> float:
        """Seconds between two ``show``."""
        return every_s

    def report(self, line: str, at_unix_s: float | None = None) -> None:
        """Something happened: to the run at a time, or here and now."""
        print(_timed(line, at_unix_s), file=self._out, flush=True)

    def show(self, progress: Progress) -> None:
        """The present state."""
        raise NotImplementedError


def _timed(line: str, at_unix_s: float | None) -> str:
    text = printable(line)
    return text if at_unix_s is None else f"{clock(at_unix_s)} {text}"


class _LineView(_View):
    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self._shown = ""

    def show(self, progress: Progress) -> None:
        line = printable(progress.line())
        if progress.is_over and line == self._shown:
            return  # it had ended before its last processes did
        self._shown = line
        print(line, file=self._out, flush=True)


class _JsonView(_View):
    def report(self, line: str, at_unix_s: float | None = None) -> None:
        self._print({"event": line, "unix_s": time.time() if at_unix_s is None else at_unix_s})

    def show(self, progress: Progress) -> None:
        self._print(progress.record())

    def _print(self, record: dict[str, Any]) -> None:
        print(to_json(record), file=self._out, flush=True)


class _BarView(_View):
    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        self._bar = Bar(
            TextColumn("[bold]{task.description}"), BarColumn(bar_width=16),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("{task.fields[facts]}", table_column=Column(ratio=1, no_wrap=True),
                       markup=False),
            expand=True, console=Console(file=out, highlight=False), refresh_per_second=4,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=1, facts="")

    def __enter__(self) -> _View:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def period(self, every_s: float) -> float:
        return min(every_s, 0.5)

    def report(self, line: str, at_unix_s: float | None = None) -> None:
        self._bar.console.print(_timed(line, at_unix_s), markup=False)

    def show(self, progress: Progress) -> None:
        facts = [progress.state, *progress.facts(), progress.waiting]
        self._bar.update(
            self._task,
            description=progress.name,
            total=progress.steps,
            completed=progress.step,
            facts=printable(" · ".join(filter(None, facts))),
        )
