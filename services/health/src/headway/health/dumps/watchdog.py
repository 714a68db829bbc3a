"""What the watchdog of PyTorch's NCCL backend prints when a collective does not finish.

The wordings are those of torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp from 1.13 to 2.13; other
backends copied them with a name of their own (``WorkXCCL``). A rank is printed twice: before the
line the one of the job, and within it the one of the group (``[PG ID 13 PG GUID 143 Rank 0]``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from headway.health.dumps.log_lines import LogLine, number_lines

WORDS: Final = ("Watchdog caught", "last enqueued", "Last enqueued", "watchdog got stuck",
                "Heartbeat monitor timed out", "Stack trace of the failed", " from /")  # fmt: skip
"""A line without any of these is not from the watchdog."""
MAX_EVENTS: Final = 100_000
"""Most events kept of one kind and file; more are only counted."""
_UNKNOWN: Final = (1 << 64) - 1
"""What an unsigned number is printed as if it was not set."""
_NAMES: Final = {
    "ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "_ALLGATHER_BASE": "_all_gather_base",
    "REDUCE_SCATTER": "reduce_scatter", "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all", "RECVANYSOURCE": "recv_any_source",
    "_ALLREDUCE_SPARSE": "all_reduce_sparse", "ALLREDUCE_COALESCED": "allreduce_coalesced",
}  # fmt: skip
"""Names of operations in flight recorder dumps, where they differ from the lower case."""
_TIMEOUT = re.compile(
    r"(?:\[Rank (?P<rank>\d+)\] )?Watchdog caught collective operation timeout: "
    r"Work\w*\((?P<fields>.{0,2000}?)\) ran for (?P<ran>\d+) milliseconds"
)
_FIELD = re.compile(r"(\w+)(?:\(ms\))?=(\[[^\]]*\]|[^,\[\])]*)")
_GROUP = re.compile(
    r"\[PG (?:ID (?P<id>\d+) )?(?:PG )?(?:GUID )?(?P<guid>[^\s\](]{1,80}) ?"
    r"(?:\((?P<name>[^)\]]{0,200})\))? ?Rank (?P<rank>\d+)\]"
)
_FAILED = re.compile(r"\bat (?:work sequence id|NCCL work|work)(?: id)?: ?(-?\d{1,19})\b")
_NEWEST = re.compile(
    r"last (?P<what>enqueued|started|completed) (?:NCCL )?work(?: sequence id)?: ?"
    r"(?P<n>-?\d{1,20})",
    re.IGNORECASE,
)
_STUCK = re.compile(r"watchdog got stuck for (\d{1,9}) seconds")
_Key = TypeVar("_Key")
_Event = TypeVar("_Event")
_CALL = re.compile(
    r"^\s*#\d{1,3} (?P<function>\S{1,200}) from (?P<file>.{1,1000}):(?P<line>\d{1,7})"
)


@dataclass(frozen=True, slots=True)
class Timeout:
    """A rank has waited for a collective for longer than its group allows."""

    rank: int
    """Rank in the job. Versions before 2.2 print only that in the group, which is taken for it."""
    sequence: int
    """Number of the collective in its group; -1 if the version does not print it."""
    op: str
    """Such as ``all_reduce``, as flight recorder dumps name it."""
    num_in: int
    """Elements; -1 if unknown."""
    num_out: int
    timeout_s: float
    ran_s: float
    group: str
    """The group's unique name, from the line that follows; empty if there is none."""
    at_s: float | None
    line: int


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How far a rank is in a group, by the sequence numbers of its collectives."""

    rank: int
    group: str
    description: str
    """Such as ``default_pg``."""
    group_rank: int
    failed: int
    """The one that did not finish in time; -1 if the line does not name it."""
    enqueued: int
    started: int
    """-1 if the version does not print it."""
    completed: int
    at_s: float | None
    line: int


@dataclass(frozen=True, slots=True)
class WatchdogStuck:
    """The watchdog of a rank could not watch: an API call hangs, or the interpreter is held."""

    rank: int
    seconds: float
    """-1 if not printed."""
    at_s: float | None
    line: int


@dataclass(frozen=True, slots=True)
class CallSite:
    """Where a rank's program called the collective that failed, innermost first."""

    rank: int
    frames: tuple[tuple[str, str, int], ...]
    """(function, file, line)."""
    line: int


@dataclass(frozen=True, slots=True)
class WatchdogReport:
    """What the watchdogs of a log reported, in the order of its lines."""

    timeouts: tuple[Timeout, ...] = ()
    statuses: tuple[GroupStatus, ...] = ()
    stuck: tuple[WatchdogStuck, ...] = ()
    calls: tuple[CallSite, ...] = ()
    num_left_out: int = 0


class WatchdogReader:
    """Collects what the watchdogs report, line by line."""

    def __init__(self) -> None:
        self._timeouts: dict[tuple[int, int, str], Timeout] = {}
        self._statuses: dict[tuple[int, str], GroupStatus] = {}
        self._stuck: dict[int, WatchdogStuck] = {}
        self._calls: dict[int, CallSite] = {}
        self._newest: dict[int, tuple[int, int, str]] = {}
        """The newest timeout of each rank."""
        self._calling = -2
        self._left_out = 0

    def feed(self, line: LogLine) -> None:
        """Read one line."""
        text = line.text
        if found := _TIMEOUT.search(text):
            self._timeout(line, found)
        elif "ast enqueued" in text:
            self._status(line)
        elif "watchdog got stuck" in text or "Heartbeat monitor timed out" in text:
            found = _STUCK.search(text)
            rank = _rank(line, _GROUP.search(text))
            if found or rank not in self._stuck:
                seconds = float(found[1]) if found else -1.0
                self._keep(self._stuck, rank, WatchdogStuck(rank, seconds, line.at_s, line.number))
        elif "Stack trace of the failed collective:" in text:
            self._calling = line.rank
            self._keep(self._calls, line.rank, CallSite(line.rank, (), line.number))
        elif found := _CALL.match(text):
            self._call(found)

    def report(self) -> WatchdogReport:
        """What was found so far."""
        calls = tuple(call for call in self._calls.values() if call.frames)
        return WatchdogReport(
            tuple(self._timeouts.values()), tuple(self._statuses.values()),
            tuple(self._stuck.values()), calls, self._left_out,
        )  # fmt: skip

    def _timeout(self, line: LogLine, found: re.Match[str]) -> None:
        fields = dict(_FIELD.findall(found["fields"]))
        rank = line.rank if line.rank >= 0 else int(found["rank"] or -1)
        op, sequence = fields.get("OpType", ""), _number(fields.get("SeqNum", ""))
        # the line is printed again as the watchdog ends by it
        if (rank, sequence, op) in self._timeouts:
            return
        shape = [int(n) for n in re.findall(r"\d{1,12}", fields.get("TensorShape", ""))]
        num_in = _number(fields.get("NumelIn", "")) if not shape else _product(shape)
        event = Timeout(
            rank, sequence, _NAMES.get(op, op.lower()), num_in,
            _number(fields.get("NumelOut", "")), _number(fields.get("Timeout", "")) / 1000,
            int(found["ran"]) / 1000, "", line.at_s, line.number,
        )  # fmt: skip
        if self._keep(self._timeouts, (rank, sequence, op), event):
            self._newest[rank] = (rank, sequence, op)

    def _status(self, line: LogLine) -> None:
        group = _GROUP.search(line.text)
        newest = {f["what"].lower(): _number(f["n"]) for f in _NEWEST.finditer(line.text)}
        if "enqueued" not in newest:
            return
        rank, name = _rank(line, group), group["guid"] if group else ""
        failed = _FAILED.search(line.text)
        status = GroupStatus(
            rank, name, (group["name"] or "") if group else "", int(group["rank"]) if group else -1,
            int(failed[1]) if failed else -1, newest["enqueued"], newest.get("started", -1),
            newest.get("completed", -1), line.at_s, line.number,
        )  # fmt: skip
        known = self._statuses.get((rank, name))
        if known is None or known.failed < 0 or status.failed >= 0:
            self._keep(self._statuses, (rank, name), status)
        self._name_group(rank, status)

    def _name_group(self, rank: int, status: GroupStatus) -> None:
        """The line before, of the same rank and number, lacks the group."""
        key = self._newest.get(rank)
        event = self._timeouts.get(key) if key else None
        if key and event and event.sequence == status.failed and not event.group:
            self._timeouts[key] = replace(event, group=status.group)

    def _call(self, found: re.Match[str]) -> None:
        call = self._calls.get(self._calling)
        if call is not None and len(call.frames) < 200:
            frame = found["function"], found["file"], int(found["line"])
            self._calls[self._calling] = replace(call, frames=(*call.frames, frame))

    def _keep(self, known: dict[_Key, _Event], key: _Key, event: _Event) -> bool:
        if len(known) >= MAX_EVENTS and key not in known:
            self._left_out += 1
            return False
        known[key] = event
        return True


def read_watchdog(lines: Iterable[str], rank: int = -1, year: int = 0) -> WatchdogReport:
    """What the watchdogs reported in a log. ``rank`` is that of its file, if it has one."""
    reader = WatchdogReader()
    for line in number_lines(lines, WORDS, rank, year):
        reader.feed(line)
    return reader.report()


def _rank(line: LogLine, group: re.Match[str] | None) -> int:
    """The rank of the job; that of the group only where the group is the whole job."""
    if line.rank >= 0 or group is None:
        return line.rank
    return int(group["rank"]) if "default_pg" in (group["name"] or "") else -1


def _number(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        return -1
    return -1 if value >= _UNKNOWN - 1 else value


def _product(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
