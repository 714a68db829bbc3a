"""Starts the program that saves flight records, from processes that must not wait for a disk."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.wire.side_thread import SideThread, log_error

SAVE_INTERVAL_S = 60.0
LOOK_INTERVAL_S = 30.0
"""A ring that is nearly half full after so long is saved then: at most two files in a minute."""
FULL_ENOUGH = 0.45
SAVE_LIMIT_S = 120.0
"""After so long a save that hangs with its disk is ended, and the next one tries again."""
ROLE = "window_writer"
"""Not the parent's: an executor recognises its services by their roles."""

_log = get_logger("windows")


@dataclass(frozen=True, slots=True)
class Saving:
    """Which rings are saved, and where."""

    shm_dir: Path
    events: Path
    node: int
    keep_bytes: int = 0
    """Older windows are removed beyond it; 0 keeps all, as at the end of a run."""
    verdicts: Path | None = None
    """The run's ``verdicts.jsonl``: windows around its incidents are kept longer."""

    def run(self, *, final: bool = False, limit_s: float = SAVE_LIMIT_S) -> bool:
        """Save once in a process of its own; whether that was done. Never raises for a disk.

        Its log lines go where those of this process go. One that does not end in time is killed;
        one that is stuck in the kernel is left to itself.
        """
        try:
            child = subprocess.Popen(
                self._command(final=final),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "HEADWAY_ROLE": ROLE, "POLARS_MAX_THREADS": "1"},
            )
        except OSError as error:
            _log.error("flight records are not saved", reason=str(error))
            return False
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)
            _log.error("flight records are not saved", reason=f"no end within {limit_s:g} s")
            return False
        if code < 0:
            _log.error("flight records are not saved", reason=f"ended by signal {-code}")
        return code == 0

    def _command(self, *, final: bool) -> list[str]:
        command = [sys.executable, "-m", "headway.health.store.write"]
        command += ["--shm-dir", str(self.shm_dir), "--events", str(self.events)]
        command += ["--node", str(self.node), "--keep-bytes", str(self.keep_bytes)]
        if self.verdicts is not None:
            command += ["--verdicts", str(self.verdicts)]
        return [*command, "--final"] if final else command


class SaveThread:
    """Saves windows once a minute, on a thread that waits for the child."""

    def __init__(self, saving: Saving) -> None:
        self._saving = saving
        self._saved_s = time.monotonic()
        self._heads: dict[Path, int] = {}
        self._is_ending = self._is_over = False
        if importlib.util.find_spec("polars") is None:
            _log.warning(
                "flight records are saved as raw windows, about six times as large",
                reason="polars is not installed",
                remedy="install headway-health[store]",
            )
        self._thread = SideThread("windows", self._save, first_s=LOOK_INTERVAL_S)

    def finish(self) -> bool:
        """Begin the last save; returns whether it is done. Call it repeatedly until then."""
        if not self._is_ending:
            self._is_ending = True
            # Open records of live ranks are left to a restarted agent, or to the end of the run.
            self._thread.submit(self._saving.run, self._ended)
        self._thread.run_callbacks()
        return self._is_over

    def _save(self) -> float:
        is_due = time.monotonic() - self._saved_s > SAVE_INTERVAL_S - LOOK_INTERVAL_S / 2
        heads = _heads(self._saving.shm_dir)
        if is_due or any(self._fills(path, *found) for path, found in heads.items()):
            self._heads = {path: head for path, (head, _) in heads.items()}
            self._saved_s = time.monotonic()
            self._saving.run()
        return LOOK_INTERVAL_S

    def _fills(self, path: Path, head: int, capacity: int) -> bool:
        """Whether a ring would have overwritten records before the next look."""
        before = self._heads.get(path, 0)
        return head - (before if before <= head else 0) > FULL_ENOUGH * capacity

    def _ended(self, result: object, error: Exception | None) -> None:
        log_error(result, error)
        self._is_over = True
        self._thread.close()


def _heads(shm_dir: Path) -> dict[Path, tuple[int, int]]:
    """Records begun and capacity of each ring."""
    from headway.common.node.flight import FlightReader  # needs numpy, which takes long to import

    found = {}
    for path in shm_dir.glob("flight-*.bin"):
        try:
            reader = FlightReader(path)
        except (OSError, HeadwayError):
            continue  # being made or removed; a damaged one is named by the saver
        found[path] = (reader.head, reader.header.capacity)
        reader.close()
    return found
