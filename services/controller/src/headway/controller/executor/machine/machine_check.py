"""Checks this machine when the driver asks for it: ``headway health check`` in a child.

The executor never waits for it, and it ends with the executor: one whose executor is restarted is
begun again. It also ends when the node is given ranks, which it would slow down.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

import msgspec
from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.node.process import ProcessId, ending_with_me, spawn
from headway.common.node.run_dir import NodePaths, RunDir
from headway.common.wire.messages.driver import NodeCheck
from headway.health.config import HealthConfig

MAX_REASON = 500
"""Characters of the sentence in a beat."""
OUTPUT = "machine-check.json"

log = get_logger("check")


class _Result(msgspec.Struct):
    name: str
    ok: bool | None
    message: str


class _Report(msgspec.Struct):
    """What is read of the document that the command prints."""

    results: list[_Result]


class MachineCheck:
    """At most one check at a time; ``look`` says where the newest stands."""

    def __init__(
        self,
        run: RunDir,
        limits: HealthConfig,
        paths: NodePaths,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._clock_s = limits, clock_s
        self._folders = (run.path, run.checkpoints)  # looked up now: their disk may hang later
        self._env = {**os.environ, "HEADWAY_ROLE": "check"}
        self._output = paths.shm_dir / OUTPUT
        self._process: ProcessId | None = None
        self._began_s = 0.0
        self._newest: NodeCheck | None = None

    def begin(self, number: int) -> None:
        """Begin check ``number``, unless it or a later one was begun.

        To be called by the main thread, with whose end the check ends. A running one is ended: the
        machine may have been repaired since it began.
        """
        if self._newest is not None and number <= self._newest.number:
            return
        self.close()
        self._newest = NodeCheck(number=number)
        try:
            self._output.unlink(missing_ok=True)
            self._process = spawn(self.command, self._output, ending_with_me(self._env))
            self._began_s = self._clock_s()
            log.info("the machine is checked", number=number)
        except (HeadwayError, OSError) as error:
            self._finish((), f"the check could not be started: {error}")

    def look(self) -> NodeCheck | None:
        """The newest check, None before the first; never blocks."""
        if self._process is not None:
            limit_s = self._limits.quick_suite_s
            if not self._process.alive():
                self._process = None
                self._finish(*self._result())
            elif self._clock_s() - self._began_s > limit_s:
                self.close()
                self._finish(("deadline",), f"the check was not done within {limit_s:.0f} s")
        return self._newest

    def give_way(self) -> None:
        """End a running check without a result: the node has ranks now."""
        if self._process is not None:
            self.close()
            self._finish((), "the check was ended, since the node was given ranks")

    def close(self) -> None:
        """End a running check."""
        process, self._process = self._process, None
        if process is not None and process.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    @property
    def command(self) -> list[str]:
        """What is run: the folders of the run must answer, and the one of checkpoints be fast."""
        words = [sys.executable, "-m", "headway.health", "check", "--suite", "quick", "--json"]
        words += ["--min-shm-mib", str(self._limits.check_min_shm_mib)]
        words += ["--deadline-s", str(self._limits.check_deadline_s)]
        words += ["--disk", str(self._folders[-1])]
        for folder in self._folders:
            words += ["--mount", str(folder)]
        return words

    def _finish(self, failed: tuple[str, ...], reason: str) -> None:
        assert self._newest is not None
        number, reason = self._newest.number, reason[:MAX_REASON]
        self._newest = NodeCheck(number=number, is_done=True, failed=failed, reason=reason)
        say = log.warning if reason else log.info
        say("the machine was checked", number=number, failed=failed, reason=reason)

    def _result(self) -> tuple[tuple[str, ...], str]:
        """Names of the failed checks and their messages; or why there is no result."""
        lines = [b""]
        try:
            lines = self._output.read_bytes().strip().splitlines() or lines
            report = msgspec.json.decode(lines[-1], type=_Report)
        except (OSError, ValueError) as error:
            last = lines[-1].decode(errors="replace") or str(error)
            return (), f"the check printed no result: {last}"
        failed = [result for result in report.results if result.ok is False]
        reason = "; ".join(f"{result.name}: {result.message}" for result in failed)
        return tuple(result.name for result in failed), reason
