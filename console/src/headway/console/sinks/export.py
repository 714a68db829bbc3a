"""One export of a run: a reader of its journal, a sink, and the position on disk between them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.console.folder.records import RunRecords
from headway.console.sinks import position, sink
from headway.console.sinks.items import Sink
from headway.console.sinks.journal_reader import HistoryReader


@dataclass(frozen=True)
class Exported:
    """What an export has written."""

    run: str
    sink: str
    out: Path
    steps: int
    """Since the export was opened, like the next two."""
    evaluations: int
    recoveries: int
    last_step: int
    """Completed steps up to which the run is exported, -1 before the first."""


class Export:
    """``update`` brings the sink up to date; it can be repeated after a failure."""

    def __init__(self, run: RunRecords, name: str, out: Path) -> None:
        self._run, self._name, self._out = run, name, out
        self._sink: Sink | None = None
        self._reader: HistoryReader | None = None
        self._counts: Counter[str] = Counter()
        """What readers that were closed have read."""

    def update(self) -> Exported:
        """Write everything that is new; returns what has been written so far.

        After a failure the next call begins again at the newest commit.

        Raises:
            OSError: the output cannot be written.
            UnreadableJournalError: the journal cannot be read now.
            CorruptError, InputError: the position cannot be used.
        """
        try:
            return self._update()
        except BaseException:
            self.close(is_whole=False)
            raise

    def _update(self) -> Exported:
        reader, opened = self._opened()
        is_more = True
        while is_more:
            items, is_more = reader.read()
            if items:
                opened.write(items)
            if (items or is_more) and not opened.commits_at_end:
                reader.position.sink = opened.commit()
                position.save(self._out, reader.position)
        read = self._counts + reader.counts
        return Exported(
            run=self._run.name,
            sink=self._name,
            out=self._out,
            steps=read["steps"],
            evaluations=read["evaluations"],
            recoveries=read["recoveries"],
            last_step=reader.position.history.top,
        )

    def _opened(self) -> tuple[HistoryReader, Sink]:
        if self._reader is None or self._sink is None:
            run_id = self._run.folder.run_id
            at = position.load(self._out, run_id, self._name)
            self._reader = HistoryReader(self._run, at)
            make = sink(self._name)
            self._sink = make(self._out, run_id=run_id, name=self._run.name, state=at.sink)
        return self._reader, self._sink

    def close(self, *, is_whole: bool = True) -> None:
        """End the sink; ``update`` opens it again. ``is_whole``: it has all that was read."""
        reader, opened = self._reader, self._sink
        self._sink = self._reader = None
        if reader is None or opened is None:
            return
        self._counts += reader.counts
        opened.close()
        if is_whole and opened.commits_at_end:
            reader.position.sink = opened.commit()
            position.save(self._out, reader.position)


@contextlib.contextmanager
def exporting(run: RunRecords, name: str, out: Path | None = None) -> Iterator[Export]:
    """An export of ``run``, the only one into that folder; by default ``sinks/NAME`` in the run's.

    Raises:
        InputError: another process exports there, or the folder cannot be made.
    """
    folder = out if out is not None else run.folder.sinks / name
    with position.locked(folder):
        made = Export(run, name, folder)
        try:
            yield made
        finally:
            made.close()
