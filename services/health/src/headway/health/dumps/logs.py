"""Reads a trainer's log in one pass for all that is known of such logs.

A log may have 10 GB: it is read line by line, and what is kept of it is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from headway.health.dumps import elastic, failures, transport, watchdog
from headway.health.dumps.log_lines import LogLine, split_line
from headway.health.dumps.stacks import STACK_HEADING, ProcessStack, read_stacks
from headway.health.dumps.times import read_stamp

_WORDS: Final = (
    *watchdog.WORDS, *transport.WORDS, *failures.WORDS, elastic.ROOT, elastic.OTHERS,
    "failed (exitcode", STACK_HEADING,
)  # fmt: skip
_STAMPED_LINES: Final = 1000
"""At the beginning of a log, how many are searched for when it was begun."""
_STACK_LINES: Final = 10_000
"""Most lines of stacks kept of one rank."""
_BEGIN = re.compile(
    r"\b(?:job|run|training|launch\w*)\b.{0,40}\b(?:start|beg[aiu]n|launch)\w*"
    r"|\b(?:start(?:ed|ing)? ?(?:time|at)|launched at)\b",
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
    stacks: tuple[ProcessStack, ...]
    """That ``faulthandler`` wrote into the log."""
    begun_at_s: float | None
    """When the job was started, if a line near the beginning has that with a calendar time."""
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
    errors, table, dumped = failures.FailureReader(), elastic.ElasticReader(), _StackLines()
    begun_at_s, first_at_s, number = None, None, 0
    for number, text in enumerate(lines, 1):
        if begun_at_s is None and number <= _STAMPED_LINES:
            stamp = read_stamp(text, year)
            if stamp is not None and stamp.at_s is not None:
                first_at_s = first_at_s or stamp.at_s
                begun_at_s = stamp.at_s if _BEGIN.search(text[:400]) else None
        is_inside = errors.is_inside or table.is_inside or dumped.is_inside
        if not (is_inside or any(word in text for word in _WORDS)):
            continue
        line = split_line(text, number, rank, year)
        watch.feed(line)
        connections.feed(line)
        errors.feed(line)
        table.feed(line)
        dumped.feed(line)
    found, network = watch.report(), connections.report()
    left_out = found.num_left_out + network.num_left_out + errors.num_left_out
    return LogReport(
        found, network, errors.failures(), table.failures(), dumped.stacks(), begun_at_s,
        first_at_s, number, left_out,
    )  # fmt: skip


class _StackLines:
    """Collects the lines of stacks, by the rank whose lines they are."""

    def __init__(self) -> None:
        self._lines: dict[int, list[str]] = {}
        self.is_inside = False

    def feed(self, line: LogLine) -> None:
        if STACK_HEADING in line.text or line.text.startswith("Fatal Python error:"):
            self.is_inside = True
        elif not self.is_inside or not line.text.lstrip().startswith(("File ", "...", "<no ")):
            self.is_inside = self.is_inside and not line.text.strip()
            return
        kept = self._lines.setdefault(line.rank, [])
        if len(kept) < _STACK_LINES:
            kept.append(line.text)

    def stacks(self) -> tuple[ProcessStack, ...]:
        return tuple(
            replace(stack, rank=rank)
            for rank, lines in self._lines.items()
            for stack in read_stacks("\n".join(lines))
        )
