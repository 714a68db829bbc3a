"""The summaries of steps that a monitor receives, on their way to the disk once a minute.

They wait in memory, encoded, so that a disk that hangs delays no verdict; what would exceed
``MAX_BYTES`` is dropped and counted, as are those that never arrived.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from headway.common.log import get_logger
from headway.common.wire.messages.summaries import StepSummary
from headway.common.wire.side_thread import SideThread, log_error
from headway.health.store.child import ROLE, SAVE_INTERVAL_S, SAVE_LIMIT_S
from headway.health.store.summary_file import framed

MAX_BYTES = 64 << 20
"""A minute of 12,288 ranks that step every 2 s."""

_log = get_logger("summaries")


@dataclass(slots=True)
class SummaryLog:
    """Collects summaries and has them written; ``add`` never blocks."""

    folder: Path
    run_id: str
    keep_bytes: int
    verdicts: Path
    num_steps: int = 0
    num_lost: int = 0
    """Summaries that were sent and did not arrive, and steps that were dropped on the way."""
    _waiting: list[bytes] = field(default_factory=list)
    _num_bytes: int = 0
    _newest: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By node: the agent's process, and the number of its newest summary."""
    _encoder: msgspec.msgpack.Encoder = field(default_factory=msgspec.msgpack.Encoder)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: SideThread | None = None

    def add(self, summary: StepSummary) -> None:
        """Take one in; one of another run, or that arrives twice or late, is left out."""
        pid, newest = self._newest.get(summary.node, (summary.pid, summary.sequence - 1))
        if summary.pid != pid:
            newest = 0
        if summary.run_id != self.run_id or summary.sequence <= newest:
            return
        self._newest[summary.node] = (summary.pid, summary.sequence)
        lost = summary.sequence - newest - 1 + summary.num_dropped
        body = self._encoder.encode(summary)
        with self._lock:
            has_room = self._num_bytes + len(body) <= MAX_BYTES
            if has_room:
                self._waiting.append(body)
                self._num_bytes += len(body)
        if has_room:
            self.num_steps += len(summary.steps)
        else:
            lost += len(summary.steps)
        if lost > 0:
            self.num_lost += lost
            _log.warning("summaries of steps are lost", node=summary.node, lost=lost)

    def start(self) -> None:
        """Have them written once a minute."""
        self._thread = SideThread("summaries", self._save, first_s=SAVE_INTERVAL_S)

    def close(self, limit_s: float) -> None:
        """Write what waits, for at most so long."""
        if self._thread is not None:
            self._thread.submit(self._save, log_error)
            self._thread.close(limit_s)
            self._thread = None

    def _save(self) -> float:
        with self._lock:
            waiting, self._waiting, self._num_bytes = self._waiting, [], 0
        if waiting:
            self._write(framed(waiting))
        return SAVE_INTERVAL_S

    def _write(self, content: bytes) -> None:
        command = [sys.executable, "-m", "headway.health.store.summary_file"]
        command += ["--folder", str(self.folder), "--verdicts", str(self.verdicts)]
        command += ["--keep-bytes", str(self.keep_bytes)]
        env = {**os.environ, "HEADWAY_ROLE": ROLE, "POLARS_MAX_THREADS": "1"}
        try:
            subprocess.run(command, input=content, env=env, timeout=SAVE_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            _log.error("summaries of steps are not saved", reason=str(error))
