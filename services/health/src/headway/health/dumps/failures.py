"""Python's tracebacks in a log: how each process failed, and where in the user's own code.

Several ranks write at once, so that lines of their tracebacks alternate; the launcher's prefix
keeps them apart (see ``log_lines``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from headway.health.dumps.frames import Frame, innermost_own
from headway.health.dumps.log_lines import MAX_SHOWN, LogLine, split_line

MAX_FAILURES: Final = 20_000
MAX_FRAMES: Final = 200
"""Most frames kept of one traceback: the last ones of a longer one, as in endless recursion."""
HEADING: Final = "Traceback (most recent call last):"
WORDS: Final = (HEADING, "Error", "Exception", "KeyboardInterrupt", "above exception")
"""A line without any of these does not begin, name or join a traceback."""
_FILE = re.compile(
    r'\s*File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<name>.{1,300}))?'
)
_ERROR = re.compile(
    r"(?P<type>(?:[a-zA-Z_]\w{0,80}\.){0,10}(?:[A-Z]\w{0,80}(?:Error|Exception|Timeout|Killed)"
    r"|SystemExit|KeyboardInterrupt))(?:: (?P<message>.*))?$"
)
_ANY_ERROR = re.compile(
    r"(?P<type>(?:[a-zA-Z_]\w{0,80}\.){0,10}[a-zA-Z_]\w{0,80})(?:: (?P<message>.*))?$"
)
_LAUNCHER: Final = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException")


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that ended a process, or was logged by it."""

    rank: int
    """-1 if unknown."""
    error: str
    """Such as ``torch.OutOfMemoryError``."""
    message: str
    """The first line of it, shortened."""
    frames: tuple[Frame, ...]
    """Innermost first; empty if only the last line is there."""
    at_s: float | None
    line: int
    """Line number of the error in the log."""
    is_cause: bool
    """Whether another traceback of the same process follows that came from this one."""

    @property
    def where(self) -> Frame | None:
        """The innermost frame of the user's own code."""
        return innermost_own(self.frames)

    @property
    def is_launcher(self) -> bool:
        """Whether a launcher reports by it that one of its processes has ended."""
        return self.error.rpartition(".")[2] in _LAUNCHER


@dataclass(slots=True)
class _Open:
    """A traceback of one rank that has not ended."""

    at_s: float | None
    frames: list[Frame] = field(default_factory=list)


class FailureReader:
    """Collects tracebacks, line by line."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._found: list[Failure] = []
        self._last: dict[int, int] = {}
        """Where the newest failure of a rank is in the list."""
        self.num_left_out = 0

    @property
    def is_inside(self) -> bool:
        """Whether a traceback has begun and not ended, so that the next line may belong to it."""
        return bool(self._open)

    def feed(self, line: LogLine) -> None:
        """Read one line."""
        if HEADING in line.text:
            self._open[line.rank] = _Open(line.at_s)
            return
        if line.text.startswith(
            ("The above exception was the direct", "During handling of the above")
        ):
            self._mark_cause(line.rank)
            return
        known = self._open.get(line.rank)
        if known is not None:
            self._continue(line, known)
        elif line.rank >= 0 and (found := _ERROR.match(line.text)):
            # the last line alone: the others were lost or filtered
            self._add(line, found, ())

    def failures(self) -> tuple[Failure, ...]:
        """What was found so far, in the order of the log."""
        return tuple(self._found)

    def _continue(self, line: LogLine, known: _Open) -> None:
        if found := _FILE.match(line.text):
            known.frames.append(Frame(found["name"] or "", found["file"], int(found["line"])))
            del known.frames[:-MAX_FRAMES]
        elif line.text[:1].isspace() or not line.text.strip():
            return  # the text of a line of code, or what marks a place in it
        else:
            del self._open[line.rank]
            found = _ANY_ERROR.match(line.text)
            if found:
                self._add(line, found, tuple(reversed(known.frames)), known.at_s)

    def _add(
        self,
        line: LogLine,
        found: re.Match[str],
        frames: tuple[Frame, ...],
        at_s: float | None = None,
    ) -> None:
        if len(self._found) >= MAX_FAILURES:
            self.num_left_out += 1
            return
        message = (found["message"] or "").strip()[:MAX_SHOWN]
        self._last[line.rank] = len(self._found)
        self._found.append(
            Failure(
                line.rank, found["type"], message, frames, at_s or line.at_s, line.number, False
            )
        )

    def _mark_cause(self, rank: int) -> None:
        at = self._last.get(rank)
        if at is not None:
            one = self._found[at]
            self._found[at] = Failure(
                one.rank, one.error, one.message, one.frames, one.at_s, one.line, True
            )


def read_failures(lines: Iterable[str], rank: int = -1, year: int = 0) -> tuple[Failure, ...]:
    """The tracebacks of a log. ``rank`` is that of its file, if it has one."""
    reader = FailureReader()
    for number, text in enumerate(lines, 1):
        if reader.is_inside or any(word in text for word in WORDS):
            reader.feed(split_line(text, number, rank, year))
    return reader.failures()
