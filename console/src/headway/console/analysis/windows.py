"""Saved windows of flight records: which of them a question needs, and what is in one.

Of a window that cannot overlap the time asked for only the name, or else its metadata, is read; nor
are the rows of one whose statistics show that it has none of the steps asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from headway.common.errors import CorruptError
from headway.common.node.event_files import (
    COLUMNS,
    FACTS_KEY,
    EventFile,
    WindowFacts,
    from_columns,
    read_facts,
    read_raw,
    to_columns,
)
from headway.console.analysis.clocks import Clocks

_TYPES = {name: pl.Series(np.empty(0, kind)).dtype for name, kind in COLUMNS.items()}
_REMEDY = "remove the file"


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a run that is looked at, on the run's clock; None is no limit."""

    since_ns: int | None = None
    until_ns: int | None = None
    where: pl.Expr | None = None
    """Which records, by columns that ``event_files.COLUMNS`` and ``WINDOW`` share; not by times."""

    def overlaps(self, start_ns: int, end_ns: int | None) -> bool:
        """Whether something that began and ended then is in it; with None, without an end."""
        ends_before = end_ns is not None and self.since_ns is not None and end_ns < self.since_ns
        return not ends_before and (self.until_ns is None or start_ns <= self.until_ns)

    def during(self, events: pl.DataFrame) -> pl.DataFrame:
        """Those of ``load_events`` that are in it."""
        if self.since_ns is not None:
            events = events.filter(pl.col("end_ns").is_null() | (pl.col("end_ns") >= self.since_ns))
        if self.until_ns is not None:
            events = events.filter(pl.col("start_ns") <= self.until_ns)
        return events if self.where is None else events.filter(self.where)


WHOLE = Span()


def read_window(file: EventFile, clocks: Clocks, span: Span = WHOLE) -> npt.NDArray[Any] | None:
    """The records of a window, dtype ``WINDOW``, with times of the run's clock.

    None if it has nothing of ``span``; what it has may go beyond it.

    Raises:
        CorruptError: it is unreadable. FileNotFoundError: it was removed meanwhile.
    """
    saved_s = file.path.stat().st_mtime
    if not file.is_parquet:
        with _named(file.path):
            raw = read_raw(file.path)
        return clocks.shift(file.node, _chosen(raw, span), saved_s)
    if not span.overlaps(clocks.on_run_clock(file.node, file.start_ns, saved_s), None):
        return None
    facts = facts_of(file)
    end_ns = clocks.on_run_clock(file.node, facts.end_ns, saved_s, facts.boot_id)
    if not span.overlaps(end_ns, end_ns):
        return None
    with _named(file.path):
        rows = pl.scan_parquet(file.path, glob=False)
        kept = rows if span.where is None else rows.filter(span.where)
        stored = kept.select(pl.col(name).cast(_TYPES[name]) for name in COLUMNS).collect()
    records = from_columns({name: stored[name].to_numpy() for name in COLUMNS})
    return clocks.shift(file.node, records, saved_s, facts.boot_id)


def facts_of(file: EventFile) -> WindowFacts:
    """What a Parquet window says about itself.

    Raises:
        CorruptError: it is unreadable. FileNotFoundError: it was removed meanwhile.
    """
    with _named(file.path):
        metadata = pl.read_parquet_metadata(file.path)
    return read_facts(file.path, metadata.get(FACTS_KEY))


def newest_saved_ns(files: Iterable[EventFile], clocks: Clocks) -> int | None:
    """When the newest records of a run ended; None without a readable Parquet window."""
    newest: dict[int, tuple[float, EventFile]] = {}
    for file in files:
        if file.is_parquet:
            saved = (file.path.stat().st_mtime, file)
            newest[file.node] = max(saved, newest.get(file.node, saved))
    ends = []
    for saved_s, file in newest.values():
        with contextlib.suppress(CorruptError, FileNotFoundError):
            facts = facts_of(file)
            ends.append(clocks.on_run_clock(file.node, facts.end_ns, saved_s, facts.boot_id))
    return max(ends, default=None)


def _chosen(records: npt.NDArray[Any], span: Span) -> npt.NDArray[Any]:
    if span.where is None:
        return records
    kept = pl.DataFrame(to_columns(records)).filter(span.where)
    return from_columns({name: kept[name].to_numpy() for name in COLUMNS})


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file is one error with its name and what to do."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        first_line = str(error).partition("\n")[0]
        raise CorruptError(
            f"{path} is not a window of records: {first_line}", remedy=_REMEDY
        ) from error
