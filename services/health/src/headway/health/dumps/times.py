"""Reads the stamps of lines, in the formats that kernels, trainers and tools print.

A stamp without a zone is taken as UTC, and files of one folder are assumed to agree in this: which
zone a machine was in cannot be known from its log. The stamps of PyTorch's C++ log lack the year.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_MONTHS: Final = (
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
)  # fmt: skip
_CTIME = re.compile(
    r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<name>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) "
    r"(?P<clock>\d\d:\d\d:\d\d)(?:[.,]\d+)? (?:[A-Z]{3,4} )?(?P<year>\d{4})\b"
)
_ISO = re.compile(
    r"(?<!\d)(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _](?P<clock>\d\d:\d\d:\d\d)"
    r"(?:[.,](?P<part>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_SYSLOG = re.compile(
    r"^(?P<name>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d)(?:\.(?P<part>\d+))? "
)
_GLOG = re.compile(
    r"\b[IWEF](?P<month>\d{1,2})(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)\.(?P<part>\d{1,9})\b"
)
_UPTIME = re.compile(r"^(?:<\d+>|\w+ *:\w+ *: *)?\[ *(?P<uptime>\d{1,10}\.\d{1,9})\]")
_KMSG = re.compile(r"^\d+,\d+,(?P<us>\d{1,18}),")


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a line was written: by the calendar, or since its machine was started."""

    at_s: float | None = None
    """Seconds since 1970."""
    uptime_s: float | None = None
    """Seconds since the start of the machine."""


def read_stamp(line: str, year: int = 0) -> Stamp | None:
    """The first stamp of a line, None without one.

    ``year`` is for stamps that lack it; without one they are None too, since a day without its
    year is before or after anything.
    """
    line = line[:400]
    if found := _UPTIME.match(line):
        return Stamp(uptime_s=float(found["uptime"]))
    if found := _KMSG.match(line):
        return Stamp(uptime_s=int(found["us"]) / 1e6)
    for pattern in (_ISO, _CTIME, _GLOG, _SYSLOG):
        if found := pattern.search(line):
            at_s = _calendar(found.groupdict(), year)
            return None if at_s is None else Stamp(at_s=at_s)
    return None


def first_stamp_s(lines: Iterable[str], year: int = 0, most: int = 1000) -> float | None:
    """The first calendar time in the first ``most`` lines: about when a log was begun."""
    for _, line in zip(range(most), lines, strict=False):
        stamp = read_stamp(line, year)
        if stamp is not None and stamp.at_s is not None:
            return stamp.at_s
    return None


def _calendar(parts: dict[str, str | None], year: int) -> float | None:
    hour, minute, second = (int(part) for part in (parts["clock"] or "0:0:0").split(":"))
    name = (parts.get("name") or "").lower()
    try:
        month = _MONTHS.index(name) + 1 if name else int(parts["month"] or 0)
        day = datetime(int(parts.get("year") or year), month, int(parts["day"] or 0), tzinfo=UTC)
        zone = _zone_s(parts.get("zone") or "")
    except (ValueError, OverflowError):
        return None
    within_s = hour * 3600 + minute * 60 + second + float(f"0.{parts.get('part') or 0}")
    return day.timestamp() + within_s - zone


def _zone_s(text: str) -> int:
    """How far a zone is ahead of UTC."""
    if text in ("", "Z"):
        return 0
    ahead = int(text[1:3]) * 3600 + int(text[-2:]) * 60
    return -ahead if text[0] == "-" else ahead
