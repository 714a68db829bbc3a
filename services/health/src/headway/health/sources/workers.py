"""The state of each rank of this node, from flight ring, process and exit record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

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


class WorkerSource:
    """The ranks whose flight rings are in ``shm_dir``."""

    def __init__(self, shm_dir: Path, config: HealthConfig) -> None:
        self._shm_dir = shm_dir
        self._flight = FlightSource(shm_dir, config.median_window_steps)
        self._feeds = FeedSource(shm_dir)
        self._pss = PssReader(config.pss_interval_s)
        self._cpu: dict[ProcessId, tuple[float, float]] = {}
        """Process -> (time, CPU seconds) of the last reading."""
        self._num_fds: dict[ProcessId, int] = {}
        self._num_readings = 0

    def read(self) -> tuple[WorkerSignals, ...]:
        """One reading of every rank."""
        found = self._flight.read()
        feeds = self._feeds.read()
        processes = {ProcessId(ring.pid, ring.start_ticks) for ring in found}
        self._cpu = {process: row for process, row in self._cpu.items() if process in processes}
        if self._num_readings % FDS_READINGS == 0:
            self._num_fds.clear()
        self._num_readings += 1
        self._pss.follow(processes)
        return tuple(self._worker(ring, feeds) for ring in found)

    def close(self) -> None:
        self._flight.close()
        self._feeds.close()
        self._pss.close()

    def _worker(self, ring: WorkerSignals, feeds: Mapping[ProcessId, Feed]) -> WorkerSignals:
        process = ProcessId(ring.pid, ring.start_ticks)
        known = self._num_fds.get(process)
        signals = read_process(process.pid, process.start_ticks, num_fds=known)
        self._num_fds[process] = signals.num_fds
        feed = feeds.get(process, _NO_FEED)
        words = self._last_words(process) if signals.state in _ENDED else None
        return msgspec.structs.replace(  # type: ignore[type-var]
            ring,
            state="done" if words is not None and words.code == 0 else signals.state,
            rss_bytes=signals.rss_bytes,
            pss_bytes=self._pss.newest(process),
            num_threads=signals.num_threads,
            num_fds=signals.num_fds,
            cpu_fraction=self._cpu_fraction(process, signals),
            exit_code=words.code if words is not None else None,
            reason=words.reason if words is not None else "",
            data_wait=feed.wait,
            data_age_s=feed.age_s,
            data_pid=feed.writer_pid,
        )

    def _cpu_fraction(self, process: ProcessId, signals: ProcessSignals) -> float:
        now_s = time.monotonic()
        before_s, before_cpu_s = self._cpu.get(process, (now_s, signals.cpu_s))
        self._cpu[process] = (now_s, signals.cpu_s)
        elapsed_s = now_s - before_s
        return max(0.0, signals.cpu_s - before_cpu_s) / elapsed_s if elapsed_s > 0 else 0.0

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
