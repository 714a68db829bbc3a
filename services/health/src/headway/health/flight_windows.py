"""Saves the flight rings of a node to the run folder before they are overwritten or removed.

``events/n<node>-rank<rank>-<first start, ns>.npy`` holds the records of one window as a
plain structured array (``headway.common.node.flight``), readable with ``numpy.load`` during
the run and afterwards.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import structlog
from headway.common.node.files import replace_file
from headway.common.node.flight import FlightReader
from headway.common.node.flight_record import awaits_device
from headway.common.wire.side_thread import SideThread, log_error

SAVE_INTERVAL_S = 20.0

_log = structlog.get_logger(__name__)


class FlightWindows:
    """Call ``save`` periodically and at the end; each record is written once.

    Earlier saves are read from the windows themselves, so one saver may replace another: a
    restarted agent, or the executor at the end of the run. Two at the same time would
    write records twice.
    """

    def __init__(self, shm_dir: Path, events: Path, node: int) -> None:
        self._shm, self._events, self._node = shm_dir, events, node
        self._saved: dict[str, int] = {}

    def save(self, *, final: bool = False) -> None:
        """Write new records.

        Those of a live rank that are open, or still lack the device's times, are left for a later
        call, unless ``final``.

        A rank that cannot be saved is logged and does not delay others; the next call tries again.
        """
        for path in sorted(self._shm.glob("flight-*.bin")):
            rank = path.stem.removeprefix("flight-")
            try:
                records, ended = _read(path)
                self._write(rank, records, with_open=final or ended)
            except Exception as error:
                # such as a full disk or a damaged ring; other ranks are still saved
                _log.error("flight records are not saved", rank=rank, reason=repr(error))

    def _write(self, rank: str, records: np.ndarray, *, with_open: bool) -> None:
        saved_ns = self._saved.get(rank)
        if saved_ns is None:
            saved_ns = self._resume_at(rank)
        if len(records) and int(records["start_ns"][-1]) < saved_ns:
            saved_ns = -1  # the machine rebooted, so its clock restarted
        new = records[records["start_ns"].astype(np.int64) > saved_ns]
        if not with_open and len(new):
            # Open records of an older generation will never be closed: its process is dead. Nor
            # will the device's times be added to them.
            still_open = np.flatnonzero(
                ((new["end_ns"] == 0) | awaits_device(new))
                & (new["generation"] == new["generation"][-1])
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
        """Where the previous saver stopped, according to the newest readable window."""
        found = self._events.glob(f"n{self._node}-rank{rank}-*.npy")
        # By age, not by name, since names start at 0 again after a reboot.
        for window in sorted(found, key=lambda path: (path.stat().st_mtime_ns, path), reverse=True):
            if last_start_ns := _last_start_ns(window):
                return last_start_ns
        return -1


def _read(path: Path) -> tuple[np.ndarray, bool]:
    """The records of a ring, and whether its rank has ended, so that they no longer change."""
    with contextlib.closing(FlightReader(path)) as reader:
        writer = reader.header.process
        ended = not writer.alive()
        records = reader.snapshot()
        # A rank's next process registers itself before its first record.
        return records, ended and reader.header.process == writer


def _last_start_ns(window: Path) -> int:
    """When the last record of a window began; 0 for a damaged one, as a power loss leaves it."""
    try:
        return int(np.load(window, allow_pickle=False)["start_ns"][-1])
    except Exception as error:
        # numpy raises various errors for a file that is truncated or full of zeros
        _log.warning("a window of flight records is damaged", file=str(window), reason=repr(error))
        return 0


class WindowThread:
    """Saves windows on a separate thread, so that a slow disk does not delay beats."""

    def __init__(self, windows: FlightWindows) -> None:
        self._windows = windows
        self._is_ending = self._is_over = False
        self._thread = SideThread("windows", self._save, first_s=SAVE_INTERVAL_S)

    def finish(self) -> bool:
        """Begin the last save; returns whether it is done. Call it repeatedly until then."""
        if not self._is_ending:
            self._is_ending = True
            # Open records of live ranks are left to a restarted agent, or to the end of the run.
            self._thread.submit(self._windows.save, self._ended)
        self._thread.run_callbacks()
        return self._is_over

    def _save(self) -> float:
        self._windows.save()
        return SAVE_INTERVAL_S

    def _ended(self, result: object, error: Exception | None) -> None:
        log_error(result, error)
        self._is_over = True
        self._thread.close()
