"""Stay with a run on Kubernetes until its Job has ended, and print what its pods do."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, TextIO

from headway.common.errors import HeadwayError
from headway.common.output import to_json
from headway.common.printable import printable
from headway.console.live.interrupts import Interrupts
from headway.console.pods.ending import LOOK_S, ask_to_stop, late
from headway.console.pods.run import PodsRun, PodsStatus

CALM_LOOK_S = 10.0
"""Pause between two looks while nothing changes, so that large runs cost the API server little."""
CALM_AFTER = 30
"""Number of looks without a change after which the pauses are longer."""
TICK_S = 0.2


class PodsFollower:
    """``follow`` returns the state of the Job, or ``detached`` or ``stuck``.

    ``stuck``: it was asked to stop, and does not.

    Args:
        run: the run.
        as_json: one JSON object per line instead of text.
        out: where lines are printed; standard output by default.
    """

    def __init__(self, run: PodsRun, *, as_json: bool = False, out: TextIO | None = None) -> None:
        self._run, self._as_json = run, as_json
        self._out = out if out is not None else sys.stdout
        self._interrupts = Interrupts()
        self._shown: list[str] = []
        self._trouble = ""
        self._has_asked, self._asks_at = False, 0.0
        self._stuck, self._stops_by = "", float("inf")

    def follow(self, *, stop_on_interrupt: bool = False) -> str:
        """Block until the Job has ended, or is gone.

        Raises:
            KeyboardInterrupt: Ctrl-C without ``stop_on_interrupt``.
        """
        with self._interrupts.counting() if stop_on_interrupt else contextlib.nullcontext():
            num_calm = num_absent = 0
            while True:
                status = self._look()
                num_absent = num_absent + 1 if status is not None and status.is_absent else 0
                num_calm = num_calm + 1 if not self._show(status) else 0
                if status is not None and status.state != "running" and num_absent != 1:
                    return status.state  # one that is absent was looked for twice
                if self._stuck:
                    self.report(f"run {self._run.name}: {self._stuck}; ending it by force")
                    return "stuck"
                if self._pause(CALM_LOOK_S if num_calm > CALM_AFTER else LOOK_S):
                    return "detached"

    def _look(self) -> PodsStatus | None:
        """Where the run stands; None while the API server does not answer."""
        try:
            found = self._run.look()
        except HeadwayError as error:
            if not self._trouble:
                self._trouble = error.message
                self.report(f"{error.message}; trying again")
            return None
        if self._trouble:
            self._trouble = ""
            self.report("the API server answers again")
        return found

    def _show(self, status: PodsStatus | None) -> bool:
        """Print what is new; returns whether anything was."""
        if status is None:
            return False
        lines = status.lines()
        new = [line for line in lines if line not in self._shown]
        if new and self._as_json:
            self._print(to_json({**vars(status), "unix_s": time.time()}))
        elif new:
            for line in new:
                self._print(printable(line))
        self._shown = lines
        return bool(new)

    def report(self, line: str) -> None:
        """Print that something happened."""
        event: dict[str, Any] = {"event": line, "unix_s": time.time()}
        self._print(to_json(event) if self._as_json else printable(line))

    def _print(self, line: str) -> None:
        print(line, file=self._out, flush=True)

    @property
    def _limit_s(self) -> float:
        return self._run.config.recovery.stop_timeout_s

    # ---- Ctrl-C and SIGTERM ---------------------------------------------------------------------
    def _pause(self, pause_s: float) -> bool:
        """Wait, and act on Ctrl-C or SIGTERM; True to leave."""
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            if self._interrupts.count > 1:
                self.report(f"left {self._run.name}; watch it with {self._run.hint('watch')}")
                return True
            if self._interrupts.count and not self._has_asked:
                self._ask()
                until = min(until, time.monotonic() + LOOK_S)
            elif self._has_asked and time.monotonic() > self._stops_by:
                self._stuck = late(self._limit_s)
                return False
            time.sleep(TICK_S)
        return False

    def _ask(self) -> None:
        """Have the run stop; tried again where that fails."""
        if time.monotonic() < self._asks_at:
            return
        if not self._asks_at:
            self.report("stopping with a checkpoint; press Ctrl-C again to return at once")
        self._asks_at = time.monotonic() + LOOK_S
        try:
            self._stuck = ask_to_stop(self._run)
            self._has_asked, self._stops_by = True, time.monotonic() + self._limit_s
        except HeadwayError as error:
            if self._run.live:
                self.report(f"not stopped yet: {error}")
