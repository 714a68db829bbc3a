"""The newest flight records of a living run, read bit by bit from its rings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError
from headway.common.node.event_files import event_files
from headway.common.node.flight import FlightReader
from headway.common.node.flight_record import RECORD
from headway.common.node.run_dir import RunDir, shm_root
from headway.console.analysis.clocks import Clocks
from headway.console.analysis.events import live_rings, windows
from headway.console.analysis.windows import Span, newest_saved_ns
from headway.console.folder.records import RunRecords

MAX_OPEN = 256
"""Records that are looked at again; one still open before them was left so by a killed worker."""
FIND_S = 5.0
"""Rings are looked for at least this often."""
_NOTHING = np.empty(0, RECORD)
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Records:
    """Flight records of several ranks: three arrays of one length."""

    nodes: Ints
    ranks: Ints
    rows: npt.NDArray[Any]
    """dtype ``headway.common.node.flight.RECORD``."""

    @classmethod
    def join(cls, parts: Iterable[tuple[int, int, npt.NDArray[Any]]]) -> Records:
        """Node, rank and records of each part, put together."""
        known = [part for part in parts if len(part[2])]
        if not known:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, RECORD))
        sizes = [len(rows) for _, _, rows in known]
        return cls(
            np.repeat(np.array([node for node, _, _ in known], np.int64), sizes),
            np.repeat(np.array([rank for _, rank, _ in known], np.int64), sizes),
            _concatenate([rows for _, _, rows in known]),
        )

    @classmethod
    def merge(cls, parts: Sequence[Records]) -> Records:
        """Several of them as one."""
        known = [part for part in parts if len(part)]
        if not known:
            return cls.join(())
        return cls(
            np.concatenate([part.nodes for part in known]),
            np.concatenate([part.ranks for part in known]),
            _concatenate([part.rows for part in known]),
        )

    def where(self, mask: npt.NDArray[np.bool_]) -> Records:
        """The chosen records."""
        return Records(self.nodes[mask], self.ranks[mask], self.rows[mask])

    def __len__(self) -> int:
        return len(self.rows)


def _concatenate(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Join records as plain bytes.

    numpy would compare the fields of each part, which takes longer.
    """
    plain = f"V{RECORD.itemsize}"
    return np.concatenate([np.ascontiguousarray(part).view(plain) for part in parts]).view(RECORD)


@dataclass
class _Ring:
    reader: FlightReader
    inode: int
    rank: int
    head: int = 0
    open: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def read(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Records that ended since the call before, and those that are open now."""
        head = self.reader.head
        if head < self.head:  # the rank's memory was made anew
            self.head, self.open = 0, np.empty(0, np.int64)
        if head == self.head and not len(self.open):
            return _NOTHING, _NOTHING
        since = int(self.open[0]) if len(self.open) else self.head
        records = self.reader.snapshot(since)
        if not len(records):
            return records, records
        sequence = records["sequence"].astype(np.int64)
        is_closed = records["end_ns"] > 0
        if since == self.head and is_closed.all():  # nearly always: nothing is or was open
            self.head = int(sequence[-1]) + 1
            return records, _NOTHING
        is_new = sequence >= self.head
        if len(self.open):
            is_new |= np.isin(sequence, self.open)
        still_open = records[~is_closed][-MAX_OPEN:]
        newest = int(sequence[-1]) + 1
        self.open = still_open["sequence"].astype(np.int64)
        self.open = self.open[self.open >= newest - MAX_OPEN]
        self.head = newest
        return records[is_closed & is_new], still_open


class FlightTail:
    """``read`` returns what has ended since the call before; ``kept`` the newest ``window_s``.

    One thread only. Of an ended run, whose rings are gone, ``read`` returns once what was saved.
    """

    def __init__(self, run_dir: Path, window_s: float = 20.0) -> None:
        self._run, self._window_ns = RunDir(run_dir), int(window_s * 1e9)
        self._rings: dict[Path, _Ring] = {}
        self._clocks = Clocks(RunRecords(run_dir))
        self._kept: list[tuple[int, Records]] = []  # with the newest start of each
        self._open = Records.join(())
        self._has_looked = False
        self._changed: dict[str, int] = {}
        self._found_at_s = float("-inf")

    def read(self) -> Records:
        """Each record once, when it has ended."""
        self._find_rings()
        if not self._rings and not self._has_looked:
            new = Records.join(windows(self._run, self._newest(), skips_damaged=True))
            new = new.where(new.rows["end_ns"] > 0)
            newest = int(new.rows["start_ns"].max()) if len(new) else 0
            new = new.where(new.rows["start_ns"].astype(np.int64) >= newest - self._window_ns)
        else:
            new = self._read_rings()
        self._has_looked = True
        if len(new):
            newest = int(new.rows["start_ns"].max())
            self._kept.append((newest, new))
            self._kept = [part for part in self._kept if part[0] >= newest - self._window_ns]
        return new

    def kept(self) -> tuple[Records, ...]:
        """What ``read`` returned over the newest window, then the records that are still open."""
        return (*(records for _, records in self._kept), self._open)

    def close(self) -> None:
        """Release the rings."""
        for ring in self._rings.values():
            ring.reader.close()
        self._rings = {}

    def _newest(self) -> Span:
        """The end of what was saved, as long as the window."""
        newest_ns = newest_saved_ns(event_files(self._run.events), self._clocks)
        return Span(since_ns=None if newest_ns is None else newest_ns - self._window_ns)

    def _read_rings(self) -> Records:
        closed, still_open = [], []
        for path, ring in self._rings.items():
            ended, unfinished = ring.read()
            node = int(path.parent.name[1:]) if len(ended) or len(unfinished) else -1
            closed.append((node, ring.rank, self._clocks.shift(node, ended)))
            still_open.append((node, ring.rank, self._clocks.shift(node, unfinished)))
        self._open = Records.join(still_open)
        return Records.join(closed)

    def _find_rings(self) -> None:
        """Map each ring once; one that was removed or made anew is let go.

        The files are looked at when a folder has changed, and every few seconds.
        """
        folders = (shm_root() / self._run.run_id).glob("n*")
        changed = {str(folder): folder.stat().st_mtime_ns for folder in folders}
        now = time.monotonic()
        if changed == self._changed and now - self._found_at_s < FIND_S:
            return
        self._changed, self._found_at_s = changed, now
        self._clocks = Clocks(RunRecords(self._run.path))
        found: dict[Path, int] = {}
        for _, path in live_rings(self._run.run_id):
            with contextlib.suppress(FileNotFoundError):
                found[path] = path.stat().st_ino
        for path in [p for p, ring in self._rings.items() if found.get(p) != ring.inode]:
            self._rings.pop(path).reader.close()
        for path in sorted(found.keys() - self._rings.keys()):
            with contextlib.suppress(CorruptError, FileNotFoundError):
                reader = FlightReader(path)
                self._rings[path] = _Ring(reader, found[path], reader.header.rank)
