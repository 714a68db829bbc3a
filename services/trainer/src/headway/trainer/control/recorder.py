"""Saves the flight rings of a node to the run folder before they are overwritten or removed.

``events/n<node>-rank<rank>-<first sequence>.npy`` holds the records of one window as a plain structured array
(``headway.common.node.flight``), readable with ``numpy.load`` while the run lives and after it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from headway.common.errors import CorruptError
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
        new = records[records["sequence"] >= self._saved.get(rank, self._resume_at(rank))]
        if not final and len(new):
            open_records = np.flatnonzero(new["end_ns"] == 0)
            new = new[: open_records[0]] if len(open_records) else new
        if not len(new):
            return
        first = int(new["sequence"][0])
        target = self._events / f"n{self._node}-rank{rank}-{first:012d}.npy"
        scratch = target.with_suffix(".tmp")
        with scratch.open("wb") as file:
            np.save(file, new, allow_pickle=False)
        scratch.replace(target)
        self._saved[rank] = int(new["sequence"][-1]) + 1

    def _resume_at(self, rank: str) -> int:
        """Where the previous executor stopped, read from its newest file."""
        files = sorted(self._events.glob(f"n{self._node}-rank{rank}-*.npy"))
        if not files:
            return 0
        return int(np.load(files[-1], allow_pickle=False)["sequence"][-1]) + 1
