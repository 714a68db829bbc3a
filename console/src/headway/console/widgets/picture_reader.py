"""Takes pictures of a run, each from what is new since the one before."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from headway.console.analysis.curve import Curve, Point
from headway.console.analysis.episodes import Episodes, Recovery
from headway.console.display.formatting import clock
from headway.console.folder.logs import LogReader, as_text
from headway.console.live.news import News
from headway.console.live.progress import ProgressReader, utilisation
from headway.console.run import PAGE_RANKS, Run
from headway.console.widgets.picture import Band, Picture
from headway.console.widgets.tail import FlightTail

NEWS = 50
"""Lines of news kept."""
LOG_LINES = 40
"""Log lines of the selected rank."""
LOG_BYTES = 65_536
"""Bytes read of the end of each log file at first: the end is what matters."""
MAX_BANDS = 50
"""Recoveries kept for the page; a run that breaks more often than that has other problems."""


class RankLog(LogReader):
    """The newest lines of one rank in all log files of a run; ``update`` reads what is new."""

    def __init__(self, run: Run, rank: int) -> None:
        super().__init__([run.folder.logs, run.cluster_folder / "logs"], rank=rank)
        self.rank = rank
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        for folder in self._folders:
            for path in folder.glob("*.log"):
                now = path.stat()
                self._places[path] = (now.st_ino, max(0, now.st_size - LOG_BYTES))

    def update(self) -> tuple[str, ...]:
        """The newest lines, oldest first."""
        self._lines.extend(as_text(line) for line in self.read()[-LOG_LINES:])
        return tuple(self._lines)


class PictureReader:
    """``read`` takes the next picture. One thread only; ``close`` releases the rings."""

    def __init__(self, run: Run, window_s: float) -> None:
        self._run, self._window_s = run, window_s
        self._progress = ProgressReader(run, run.peak)
        self._tail, self._events = FlightTail(run.path, window_s), News.recent(run)
        self._news: deque[str] = deque(maxlen=NEWS)
        self._episodes, self._num_done = Episodes(), 0
        self._bands: deque[Band] = deque(maxlen=MAX_BANDS)
        self._curve, self._points = Curve(), list[Point]()
        self._is_loaded = False
        self._number = self._after_event = self._after_evaluation = 0
        self._validation: dict[int, float] = {}
        self._offset_s = 0.0
        self._log: RankLog | None = None

    def close(self) -> None:
        """Release the rings."""
        self._tail.close()

    def read(self, selected: int = -1) -> Picture:
        """The run now; ``selected`` is the rank whose log is wanted, -1 for none."""
        with self._run.reading():
            return self._read(selected)

    def _read(self, selected: int) -> Picture:
        progress = self._progress.read(num_ranks=PAGE_RANKS)
        unchanged = self._read_curve()
        self._read_events()
        self._read_evaluations()
        self._news.extend(f"{clock(at)} {line}" for at, line in self._events.read())
        new = self._tail.read()
        self._number += 1
        newest = self._progress.newest
        return Picture(
            progress=progress,
            number=self._number,
            points=tuple(self._points),
            num_unchanged=unchanged,
            validation=tuple(sorted(self._validation.items())),
            new=new,
            kept=self._tail.kept(),
            window_s=self._window_s,
            bands=tuple(self._bands) + self._open_band(),
            news=tuple(self._news),
            skipped=tuple(self._progress.skipped),
            log=self._read_log(selected),
            clock_offset_s=self._offset_s,
            mfu_per_rate=utilisation(self._progress.config, self._progress.peak, 1.0),
            step_times_s=(newest.step_time_s(0.5), newest.step_time_s(0.99)),
        )

    def _read_curve(self) -> int:
        if not self._is_loaded:
            self._curve.load(self._run)
            self._is_loaded = bool(self._curve.points())
        self._curve.add(self._progress.new)
        unchanged, points = self._curve.changes()
        self._points[unchanged:] = points
        return unchanged

    def _read_events(self) -> None:
        for one in self._run.records.events(self._after_event):
            self._after_event, self._offset_s = one.id, one.unix_s - one.monotonic_s
            self._episodes.feed(one)
        new = self._episodes.done[self._num_done :]
        self._num_done += len(new)
        self._bands.extend(self._band(recovery) for recovery in new[-MAX_BANDS:])

    def _band(self, recovery: Recovery) -> Band:
        return Band(recovery, self._run.records.repeated(recovery.generation, recovery.step))

    def _open_band(self) -> tuple[Band, ...]:
        open_one = self._episodes.open
        return () if open_one is None else (Band(replace(open_one)),)

    def _read_evaluations(self) -> None:
        for one in self._run.records.evaluations_stored(self._after_evaluation):
            self._after_evaluation = one.row
            if one.loss is not None:
                self._validation[one.step] = one.loss

    def _read_log(self, selected: int) -> tuple[str, ...]:
        if selected < 0:
            self._log = None
            return ()
        if self._log is None or self._log.rank != selected:
            self._log = RankLog(self._run, selected)
        return self._log.update()
