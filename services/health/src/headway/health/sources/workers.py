"""The state of each rank of this node, from flight ring, process and exit record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from headway.common.errors import HeadwayError
from headway.common.node.exit_record import ExitRecord, Words
from headway.common.node.process import DEAD, ProcessId
from headway.common.wire.messages.health import WorkerSignals
from headway.health.config import HealthConfig
from headway.health.sources.feeds import Feed, FeedSource
from headway.health.sources.flight import FlightSource
from headway.health.sources.proc import ProcessSignals, PssReader, read_process

_ENDED = DEAD | {"gone"}
FDS_READINGS = 8
"""Readings after which the open files of a process are counted again."""
_NO_FEED = Feed(wait="", age_s=-1.0, writer_pid=0)


class _Reading(NamedTuple):
    """What was read of a rank's process, and when."""

    process: ProcessId
    at_s: float
    signals: ProcessSignals


class WorkerSource:
    """The ranks whose flight rings are in ``shm_dir``."""

    def __init__(self, shm_dir: Path, config: HealthConfig) -> None:
        self._shm_dir = shm_dir
        self._flight = FlightSource(shm_dir, config.median_window_steps)
        self._feeds = FeedSource(shm_dir)
        self._pss = PssReader(config.pss_interval_s)
        self._readings: dict[int, _Reading] = {}
        """The newest by rank."""
        self._num_readings = 0

    def read(self) -> tuple[WorkerSignals, ...]:
        """One reading of every rank."""
        found = self._flight.read()
        feeds = self._feeds.read()
        self._pss.follow({ProcessId(ring.pid, ring.start_ticks) for ring in found})
        workers = tuple(self._worker(ring, feeds) for ring in found)
        self._num_readings += 1
        return workers

    def close(self) -> None:
        self._flight.close()
        self._feeds.close()
        self._pss.close()

    def _worker(self, ring: WorkerSignals, feeds: Mapping[ProcessId, Feed]) -> WorkerSignals:
        process = ProcessId(ring.pid, ring.start_ticks)
        cpu_fraction, signals = self._read_process(ring.rank, process)
        feed = feeds.get(process, _NO_FEED)
        words = self._last_words(process) if signals.state in _ENDED else None
        return msgspec.structs.replace(  # type: ignore[type-var]
            ring,
            state="done" if words is not None and words.code == 0 else signals.state,
            rss_bytes=signals.rss_bytes,
            pss_bytes=self._pss.newest(process),
            num_threads=signals.num_threads,
            num_fds=signals.num_fds,
            cpu_fraction=cpu_fraction,
            exit_code=words.code if words is not None else None,
            reason=words.reason if words is not None else "",
            data_wait=feed.wait,
            data_age_s=feed.age_s,
            data_pid=feed.writer_pid,
        )

    def _read_process(self, rank: int, process: ProcessId) -> tuple[float, ProcessSignals]:
        """The cores that a process has used since it was last read, and what is read now."""
        before = self._readings.get(rank)
        if before is None or before.process != process:
            signals = read_process(process.pid, process.start_ticks)
            self._readings[rank] = _Reading(process, time.monotonic(), signals)
            return 0.0, signals
        known = before.signals.num_fds if self._num_readings % FDS_READINGS else None
        signals = read_process(process.pid, process.start_ticks, num_fds=known)
        now = self._readings[rank] = _Reading(process, time.monotonic(), signals)
        cpu_s = max(0.0, signals.cpu_s - before.signals.cpu_s)
        return cpu_s / (now.at_s - before.at_s), signals

    def _last_words(self, process: ProcessId) -> Words | None:
        """The exit record of exactly this process, whatever the name of its file."""
        for path in sorted(self._shm_dir.glob("words-*.bin")):
            try:
                words = ExitRecord(path).read()
            except (OSError, HeadwayError):
                continue  # being written, or removed
            if words is not None and ProcessId(words.pid, words.start_ticks) == process:
                return words
        return None
