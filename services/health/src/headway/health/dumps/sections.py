"""Reads tables of section times: which rank was in which part of which step from when to when.

There is no standard for them: the columns of a CSV or the keys of JSON lines are recognised by
their usual names, a unit by the end of a name (``start_ms``, ``dur [us]``) and, without one, by
the size of the numbers. Clocks of different ranks need not agree.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_NAMES: Final = {
    "rank": ("rank", "global_rank", "rank_id", "worker", "worker_id", "process", "proc"),
    "host": ("host", "hostname", "node", "node_name", "machine", "server"),
    "step": ("step", "iteration", "iter", "global_step", "train_step", "step_id", "batch"),
    "section": ("section", "name", "event", "phase", "stage", "action", "operation", "op", "region",
                "span", "section_name", "event_name", "kind", "label"),
    "start": ("start", "begin", "start_time", "begin_time", "ts", "t0", "t_start", "t_begin",
              "timestamp", "started", "from", "time_start", "enter"),
    "end": ("end", "stop", "finish", "end_time", "stop_time", "t1", "t_end", "finished", "to",
            "time_end", "exit", "leave"),
    "duration": ("duration", "dur", "elapsed", "time", "took", "delta"),
}  # fmt: skip
_UNITS: Final = {
    "ns": 1e-9, "nsec": 1e-9, "nanoseconds": 1e-9, "us": 1e-6, "usec": 1e-6, "µs": 1e-6,
    "microseconds": 1e-6, "ms": 1e-3, "msec": 1e-3, "millis": 1e-3, "milliseconds": 1e-3,
    "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0,
}  # fmt: skip
_EPOCHS: Final = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Numbers from which on a time since 1970 is in nano-, micro- or milliseconds."""


@dataclass(frozen=True, slots=True)
class Section:
    """A rank was in a part of a step."""

    rank: int
    host: str
    """Empty if there is no such column."""
    step: int
    """-1 if there is no such column."""
    name: str
    start_s: float
    """By the clock of the rank, from a zero of its own."""
    end_s: float

    @property
    def duration_s(self) -> float:
        """How long it was there."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class _Columns:
    places: dict[str, int]
    units: dict[str, float]
    """Seconds for one; absent if the name does not give a unit."""
    delimiter: str


def is_header(line: str) -> bool:
    """Whether a line names the columns of such a table, or is a row as a JSON object."""
    return _columns(line) is not None or _named(_object(line.strip())[0], "") is not None


def read_sections(lines: Iterable[str]) -> Iterator[Section]:
    """The rows in the order of the file.

    Rows that are damaged, or that end before they start, are skipped. A header may come again, as
    in files that were joined.
    """
    columns: _Columns | None = None
    for line in lines:
        line = line[:8000].strip("\ufeff\r\n")
        if line[:1] == "{":
            names, values = _object(line)
            if (found := _named(names, "")) and (row := _row(values, found)):
                yield row
        elif found := _columns(line):
            columns = found
        elif columns is not None and (row := _row(_cells(line, columns.delimiter), columns)):
            yield row


def _columns(line: str) -> _Columns | None:
    line = line[:8000].strip("\ufeff\r\n").lstrip("# ")
    delimiter = max((",", "\t", ";", "|"), key=line.count)
    return _named(_cells(line, delimiter), delimiter) if delimiter in line else None


def _object(line: str) -> tuple[list[str], list[str]]:
    """The names and values of a JSON object of one line; empty if it is none."""
    try:
        row = json.loads(line) if line[:1] == "{" else None
    except (ValueError, RecursionError):
        row = None
    pairs = row.items() if isinstance(row, dict) else ()
    return [str(name) for name, _ in pairs], [str(value) for _, value in pairs]


def _named(names: Sequence[str], delimiter: str) -> _Columns | None:
    places: dict[str, int] = {}
    units: dict[str, float] = {}
    for place, cell in enumerate(names):
        name, unit = _name(cell)
        for field, known in _NAMES.items():
            if name in known and field not in places:
                places[field] = place
                if unit is not None:
                    units[field] = unit
                break
    has_span = "start" in places and ("end" in places or "duration" in places)
    if "rank" not in places or "section" not in places or not has_span:
        return None
    return _Columns(places, units, delimiter)


def _name(cell: str) -> tuple[str, float | None]:
    """A column's name in small letters without its unit, and the unit."""
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cell.strip()).lower()
    words = [word for word in re.split(r"[\s_()\[\].-]+", text) if word]
    unit = _UNITS.get(words[-1]) if len(words) > 1 else None
    return "_".join(words[:-1] if unit is not None else words), unit


def _cells(line: str, delimiter: str) -> Sequence[str]:
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _row(cells: Sequence[str], columns: _Columns) -> Section | None:
    places = columns.places
    if len(cells) <= max(places.values()):
        return None
    try:
        start = float(cells[places["start"]])
        unit = columns.units.get("start", columns.units.get("end", _guess(start)))
        if "end" in places:
            end_s = float(cells[places["end"]]) * columns.units.get("end", unit)
        else:
            span = float(cells[places["duration"]])
            end_s = start * unit + span * columns.units.get("duration", unit)
        rank = int(re.sub(r"^\D*", "", cells[places["rank"]].strip()))
        step = int(float(cells[places["step"]])) if "step" in places else -1
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(start * unit) or not math.isfinite(end_s) or end_s < start * unit:
        return None
    host = cells[places["host"]].strip() if "host" in places else ""
    return Section(rank, host, step, cells[places["section"]].strip()[:200], start * unit, end_s)


def _guess(value: float) -> float:
    """Seconds for one of a number without a unit."""
    return next((unit for least, unit in _EPOCHS if abs(value) >= least), 1.0)
