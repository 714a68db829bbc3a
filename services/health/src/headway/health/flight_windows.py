"""Saves the flight rings of a node to the run folder before they are overwritten or removed.

``events/n<node>-rank<rank>-<first start, ns>.npy`` holds the records of one window as a plain
structured array (``headway.common.node.flight``), readable with ``numpy.load`` while the run lives
and after it.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import structlog
from headway.common.errors import CorruptError
from headway.common.node.files import replace_file
from headway.common.node.flight import FlightReader

SAVE_INTERVAL_S = 20.0
WRITERS_LIMIT_S = 3.0
"""How long the last save waits for the ranks to end; a node's services have 8 s to do so."""
WRITERS_POLL_S = 0.05

_log = structlog.get_logger(__name__)


class FlightWindows:
    """Call ``save`` periodically and once at the end; each record is written once."""

    def __init__(self, shm_dir: Path, events: Path, node: int) -> None:
        self._shm, self._events, self._node = shm_dir, events, node
        self._saved: dict[str, int] = {}

    def save(self, *, final: bool = False) -> None:
        """Write the finished records that are new; with ``final`` also the ones still open."""
        for rank, reader in self._rings():
            self._write(rank, reader.snapshot(), final)

    def has_writers(self) -> bool:
        """Whether a process that writes one of the rings still runs."""
        return any(reader.header.process.alive() for _, reader in self._rings())

    def _rings(self) -> Iterator[tuple[str, FlightReader]]:
        """Each rank with its ring, which is closed behind it."""
        for path in sorted(self._shm.glob("flight-*.bin")):
            try:
                reader = FlightReader(path)
            except (CorruptError, FileNotFoundError):
                continue  # being made this moment; the next call sees it
            try:
                yield path.stem.removeprefix("flight-"), reader
            finally:
                reader.close()

    def _write(self, rank: str, records: np.ndarray, final: bool) -> None:
        saved_ns = self._saved.get(rank)
        if saved_ns is None:
            saved_ns = self._resume_at(rank)
        if len(records) and int(records["start_ns"][-1]) < saved_ns:
            saved_ns = -1  # the machine rebooted, so its clock restarted
        new = records[records["start_ns"].astype(np.int64) > saved_ns]
        if not final and len(new):
            # What an older generation left open will never be closed: its process is dead.
            still_open = np.flatnonzero(
                (new["end_ns"] == 0) & (new["generation"] == new["generation"][-1])
            )
            new = new[: still_open[0]] if len(still_open) else new
        if not len(new):
            return
        target = self._events / f"n{self._node}-rank{rank}-{int(new['start_ns'][0]):020d}.npy"
        content = io.BytesIO()
        np.save(content, new, allow_pickle=False)
        replace_file(target, content.getvalue())
        self._saved[rank] = int(new["start_ns"][-1])

    def _resume_at(self, rank: str) -> int:
        """Where the agent before stopped, by its newest file: a resumed run's ring begins at 0."""
        files = sorted(self._events.glob(f"n{self._node}-rank{rank}-*.npy"))
        if not files:
            return -1
        return int(np.load(files[-1], allow_pickle=False)["start_ns"][-1])


class WindowThread:
    """Saves windows on a thread of its own, so that a slow disk delays no beat of the agent."""

    def __init__(self, windows: FlightWindows) -> None:
        self._windows = windows
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="windows", daemon=True)
        self._thread.start()

    def finish(self) -> bool:
        """Begin the last save; returns whether it is done. Call it until it is."""
        self._ending.set()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.wait(SAVE_INTERVAL_S):
            self._save()
        # At the end of a run the ranks get their SIGTERM together with the agent: wait for their
        # last records. An agent that is ended alone leaves what is open to its successor.
        deadline = time.monotonic() + WRITERS_LIMIT_S
        while (has_writers := self._windows.has_writers()) and time.monotonic() < deadline:
            time.sleep(WRITERS_POLL_S)
        self._save(final=not has_writers)

    def _save(self, *, final: bool = False) -> None:
        try:
            self._windows.save(final=final)
        except (OSError, ValueError, EOFError) as error:  # a full disk, a damaged window
            _log.error("flight records are not saved", reason=str(error))
