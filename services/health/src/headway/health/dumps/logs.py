"""Reads a trainer's log in one pass for all that is known of such logs.

A log may have 10 GB: it is read line by line, and what is kept of it is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headway.health.dumps import elastic, failures, transport, watchdog
from headway.health.dumps.log_lines import split_line
from headway.health.dumps.times import read_stamp

_WORDS: Final = (
    *watchdog.WORDS, *transport.WORDS, *failures.WORDS, elastic.ROOT, elastic.OTHERS,
    "failed (exitcode",
)  # fmt: skip
_STAMPED_LINES: Final = 1000
"""At the beginning of a log, how many are searched for when it was begun."""
_BEGIN = re.compile(
    r"\b(?:job|run|training|launch\w*)\b.{0,40}\b(?:start|beg[aiu]n|launch)\w*"
    r"|\bstart(?:ed|ing)? ?(?:time|at)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class LogReport:
    """What a log has to contribute."""

    watchdog: watchdog.WatchdogReport
    transport: transport.TransportReport
    failures: tuple[failures.Failure, ...]
    workers: tuple[elastic.WorkerFailure, ...]
    """That torchrun reports as failed."""
    begun_at_s: float | None
    """When the job was started, if a line near the beginning says so with a calendar time."""
    first_at_s: float | None
    """The first calendar time near the beginning; the job was started then or earlier."""
    num_lines: int
    num_left_out: int
    """Events beyond those that are kept."""


def read_log(lines: Iterable[str], rank: int = -1, year: int = 0) -> LogReport:
    """What a log has about hangs, connections and failures.

    Args:
        lines: Without their ends, of any length; see ``lines.read_lines``.
        rank: That of the file, for lines that do not name one; -1 for a log of several ranks.
        year: For stamps that lack it, such as the year of the file's last change.
    """
    watch, connections = watchdog.WatchdogReader(), transport.TransportReader()
    errors, table = failures.FailureReader(), elastic.ElasticReader()
    begun_at_s, first_at_s, number = None, None, 0
    for number, text in enumerate(lines, 1):
        if begun_at_s is None and number <= _STAMPED_LINES:
            stamp = read_stamp(text, year)
            if stamp is not None and stamp.at_s is not None:
                first_at_s = first_at_s or stamp.at_s
                begun_at_s = stamp.at_s if _BEGIN.search(text[:400]) else None
        if not (errors.is_inside or table.is_inside or any(word in text for word in _WORDS)):
            continue
        line = split_line(text, number, rank, year)
        watch.feed(line)
        connections.feed(line)
        errors.feed(line)
        table.feed(line)
    found, network = watch.report(), connections.report()
    left_out = found.num_left_out + network.num_left_out + errors.num_left_out
    return LogReport(
        found, network, errors.failures(), table.failures(), begun_at_s,
        first_at_s, number, left_out,
    )  # fmt: skip
