"""The newest flight records of a living run, read bit by bit from its rings."""

from __future__ import annotations

import contextlib
from pathlib import Path

import polars as pl
from headway.common.errors import CorruptError
from headway.common.node.flight import FlightReader
from headway.common.node.run_dir import NodePaths, RunDir, shm_root
from headway.console.analysis.events import SCHEMA, frame, load_events

MAX_OPEN = 256
"""Records that are looked at again; one still open before them was left so by a killed worker."""


class FlightTail:
    """``read`` returns the newest ``window_s`` seconds of all ranks, or what was saved of an ended run.

    One thread only. A ring's records are read once; open ones are read again until they end.
    """

    def __init__(self, run_dir: Path, window_s: float = 20.0) -> None:
        self._run, self._window_s = RunDir(run_dir), window_s
        self._next: dict[Path, int] = {}
        self._kept = pl.DataFrame(schema=SCHEMA)

    def read(self) -> pl.DataFrame:
        """Columns as ``load_events``; no record twice; open actions have ``end_ns`` null."""
        parts = [
            part for path, node in self._rings() if (part := self._new(path, node)) is not None
        ]
        if not self._next and self._kept.is_empty():
            self._kept = load_events(self._run.path)
        closed = self._kept.filter(pl.col("end_ns").is_not_null())
        self._kept = self._cut(pl.concat([closed, *parts]))
        return self._kept

    def _rings(self) -> list[tuple[Path, int]]:
        found = []
        for folder in sorted((shm_root() / self._run.run_id).glob("n*")):
            if folder.name[1:].isdigit():
                node = int(folder.name[1:])
                found += [
                    (path, node) for path in NodePaths(self._run.run_id, node).segments("flight")
                ]
        return found

    def _new(self, path: Path, node: int) -> pl.DataFrame | None:
        with contextlib.suppress(CorruptError, FileNotFoundError):
            reader = FlightReader(path)
            try:
                since, header = self._next.get(path, 0), reader.header
                records = reader.snapshot(since if since <= header.head else 0)  # less: a new file
            finally:
                reader.close()
            newest = records[-MAX_OPEN:]
            still_open = newest["sequence"][newest["end_ns"] == 0]
            self._next[path] = int(still_open[0]) if len(still_open) else header.head
            return frame(node, header.rank, records)
        return None

    def _cut(self, events: pl.DataFrame) -> pl.DataFrame:
        """The window, each record once: one read twice while an older one was open counts by its end."""
        newest = events["start_ns"].max()
        if not isinstance(newest, int):
            return events
        return (
            events.filter(pl.col("start_ns") >= newest - int(self._window_s * 1e9))
            .sort("end_ns", nulls_last=True)
            .unique(["node", "rank", "sequence", "start_ns"], keep="first")
            .sort("rank", "start_ns", "sequence")
        )
