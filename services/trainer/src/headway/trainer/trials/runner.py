"""Carries out trials in processes of their own; torch is not imported here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

import msgspec
from headway.common.errors import HeadwayError
from headway.common.node.run_dir import shm_root
from headway.trainer.trials.order import Outcome, Trial

LOG_LINES = 3
"""Last lines of the log in the error of a server that ended."""


class TrialRunner:
    """A process that forks the ranks of each trial; a context manager that leaves none of them.

    Interrupts of the terminal do not reach the ranks: ``close`` ends them.
    """

    def __init__(self) -> None:
        shm_root().mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="trials-", dir=shm_root()))
        """Holds logs while it is open."""
        self._log = (self.folder / "log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headway.trainer", "trials", "--folder", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def run(self, trial: Trial) -> Outcome:
        """Carry out a trial; a failure of its ranks is the outcome's ``error``.

        Raises:
            HeadwayError: the process that forks them has ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(trial).decode() + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise HeadwayError(
                f"the process that runs trials ended: {self._last_words()}",
                remedy="see that `python -m headway.trainer trials --help` works",
            )
        return msgspec.json.decode(line, type=Outcome)

    def close(self) -> None:
        """End all processes and remove what they left in shared memory."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_words(self) -> str:
        try:
            self._log.seek(0)
            lines = self._log.read().strip().splitlines()
        except ValueError:  # another thread has closed this object
            lines = []
        return " | ".join(lines[-LOG_LINES:]) or "no log"
