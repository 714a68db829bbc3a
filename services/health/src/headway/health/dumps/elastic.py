"""The table that torchrun prints once a worker has failed.

Format of torch/distributed/elastic/multiprocessing/errors: blocks of ``key : value`` below
``Failures:`` and ``Root Cause (first observed failure):``. The first failure that torchrun has
*observed* need not be the first that happened, as its nodes are asked one after another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headway.health.dumps.log_lines import MAX_SHOWN, LogLine, split_line
from headway.health.dumps.times import read_stamp

ROOT: Final = "Root Cause (first observed failure)"
OTHERS: Final = "Failures:"
MAX_ENTRIES: Final = 20_000
_ROW = re.compile(r"\s*(?P<key>time|host|rank|exitcode|error_file|traceback)\s*:\s*(?P<value>.*)$")
_ENTRY = re.compile(r"\s*\[\d+\]:\s*$")
_RANK = re.compile(r"(\d{1,9}) ?(?:\(local[_ ]rank: ?(\d{1,9})\))?")
_EXIT = re.compile(r"(-?\d{1,9}) ?(?:\(pid: ?(\d{1,10})\))?")
_DIRECT = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,9})\) local_rank: (?P<local>\d{1,9}) "
    r"\(pid: (?P<pid>\d{1,10})\)"
)


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A worker whose end torchrun has reported."""

    rank: int
    """-1 if unknown."""
    local_rank: int
    host: str
    exit_code: int
    """Negative: minus the number of the signal."""
    pid: int
    message: str
    """Its traceback's first line, or the signal."""
    at_s: float | None
    is_root: bool
    """Whether torchrun calls it the first failure."""
    line: int


class ElasticReader:
    """Collects the entries of torchrun's tables, line by line."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int, int, str], WorkerFailure] = {}
        self._hosted: set[tuple[int, int, int]] = set()
        """(local rank, exit code, pid) of the failures whose host is known."""
        self._is_root = False
        self._entry: dict[str, str] = {}
        self._line = 0
        self.is_inside = False
        """Whether a table has begun and not ended."""

    def feed(self, line: LogLine) -> None:
        """Read one line."""
        text = line.text
        if ROOT in text or text.strip() == OTHERS:
            self._close()
            self.is_inside, self._is_root = True, ROOT in text
        elif found := _DIRECT.search(text):
            code, local, pid = int(found["code"]), int(found["local"]), int(found["pid"])
            self._add(WorkerFailure(-1, local, "", code, pid, "", line.at_s, False, line.number))
        elif self.is_inside and _ENTRY.match(text):
            self._close()
            self._line = line.number
        elif self.is_inside and (found := _ROW.match(text)):
            self._entry.setdefault(found["key"], found["value"].strip())
            self._line = self._line or line.number
        elif self.is_inside and text.strip() and text.lstrip()[0] not in "-<[":
            self._close()
            self.is_inside = False

    def failures(self) -> tuple[WorkerFailure, ...]:
        """What was found so far: the first failure of each table in front."""
        self._close()
        return tuple(sorted(self._found.values(), key=lambda one: (not one.is_root, one.line)))

    def _close(self) -> None:
        entry, self._entry = self._entry, {}
        rank, end = _RANK.match(entry.get("rank", "")), _EXIT.match(entry.get("exitcode", ""))
        line, self._line = self._line, 0
        if rank is None and end is None:
            return
        stamp = read_stamp(entry.get("time", ""))
        self._add(
            WorkerFailure(
                int(rank[1]) if rank else -1, int(rank[2]) if rank and rank[2] else -1,
                entry.get("host", ""), int(end[1]) if end else 0,
                int(end[2]) if end and end[2] else -1, entry.get("traceback", "")[:MAX_SHOWN],
                stamp.at_s if stamp else None, self._is_root, line,
            )
        )  # fmt: skip

    def _add(self, one: WorkerFailure) -> None:
        """Each node prints the table, and a line of its own for each process."""
        key = one.local_rank, one.exit_code, one.pid, one.host
        known = self._found.get(key)
        if known is not None and known.is_root:
            return
        if one.host:
            self._found.pop((*key[:3], ""), None)
            self._hosted.add(key[:3])
        elif key[:3] in self._hosted:
            return
        if len(self._found) < MAX_ENTRIES:
            self._found[key] = one


def read_elastic(lines: Iterable[str]) -> tuple[WorkerFailure, ...]:
    """The workers that torchrun reports as failed, the first failure in front."""
    reader = ElasticReader()
    for number, text in enumerate(lines, 1):
        if reader.is_inside or ROOT in text or OTHERS in text or "failed (exitcode" in text:
            reader.feed(split_line(text, number))
    return reader.failures()
