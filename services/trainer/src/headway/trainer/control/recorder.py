"""Saves the flight rings of a node to the run folder before they are overwritten or removed.

``events/n<node>-rank<rank>-<first start, ns>.npy`` holds the records of one window as a plain structured array
(``headway.common.node.flight``), readable with ``numpy.load`` while the run lives and after it.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from headway.common.errors import CorruptError
from headway.common.node.files import replace_file
from headway.common.node.flight import FlightReader


class Recorder:
    """Call ``save`` now and then and once at the end; each record is written once."""

    def __init__(self, shm_dir: Path, events: Path, node: int) -> None:
        self._shm, self._events, self._node = shm_dir, events, node
        self._saved: dict[str, int] = {}

    def save(self, *, final: bool = False) -> None:
        """Write the finished records that are new; with ``final`` also the ones still open."""
        for path in sorted(self._shm.glob("flight-*.bin")):
            try:
                reader = FlightReader(path)
            except (CorruptError, FileNotFoundError):
                continue  # being made this moment; the next call sees it
            records = reader.snapshot()
            reader.close()
            self._write(path.stem.removeprefix("flight-"), records, final)

    def _write(self, rank: str, records: np.ndarray, final: bool) -> None:
        saved_ns = self._saved.get(rank)
        if saved_ns is None:
            saved_ns = self._resume_at(rank)
        if len(records) and int(records["start_ns"][-1]) < saved_ns:
            saved_ns = -1  # the machine was started anew, and its clock with it
        new = records[records["start_ns"].astype(np.int64) > saved_ns]
        if not final and len(new):
            # What an older generation left open will never be closed: its process is dead.
            still_open = np.flatnonzero((new["end_ns"] == 0) & (new["generation"] == new["generation"][-1]))
            new = new[: still_open[0]] if len(still_open) else new
        if not len(new):
            return
        target = self._events / f"n{self._node}-rank{rank}-{int(new['start_ns'][0]):020d}.npy"
        content = io.BytesIO()
        np.save(content, new, allow_pickle=False)
        replace_file(target, content.getvalue())
        self._saved[rank] = int(new["start_ns"][-1])

    def _resume_at(self, rank: str) -> int:
        """Where the previous executor stopped, read from its newest file: a resumed run's ring counts from 0 again."""
        files = sorted(self._events.glob(f"n{self._node}-rank{rank}-*.npy"))
        if not files:
            return -1
        return int(np.load(files[-1], allow_pickle=False)["start_ns"][-1])
