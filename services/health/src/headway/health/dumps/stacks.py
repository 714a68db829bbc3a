"""Python stacks of processes: what ``py-spy dump`` and ``faulthandler`` write.

Formats of py-spy 0.3 and 0.4 (text, also with ``--locals`` and ``--native``, and ``--json``) and of
CPython's Python/traceback.c, from 3.8 to 3.14. Both print the innermost frame first.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headway.health.dumps.frames import Frame, innermost_own
from headway.health.dumps.names import host_of_name, rank_of_name

MAX_FRAMES: Final = 1000
STACK_HEADING: Final = "(most recent call first):"
"""At the beginning of each thread that faulthandler writes."""
_PROCESS = re.compile(r"(?:Parent )?Process (?P<pid>\d{1,10}): ?(?P<command>.*)")
_SPY_THREAD = re.compile(
    r"\s*Thread (?:0x[0-9a-fA-F]+|\d+)(?: \((?P<state>[\w+]+)\))?"
    r"(?:: \"(?P<name>[^\"]*)\")?\s*$"
)
_SPY_FRAME = re.compile(
    r"\s{2,6}(?P<name>\S.{0,300}?) \((?P<file>[^()]{1,1000}?)(?::(?P<line>\d{1,9}))?\)\s*$"
)
_FAULT_THREAD = re.compile(
    r"(?:(?P<current>Current )?[Tt]hread 0x[0-9a-fA-F]+(?: \[(?P<name>[^\]]*)\])?|^Stack) "
    r"\(most recent call first\):"
)
_FAULT_FRAME = re.compile(
    r'\s*File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9}|\?{3}) in (?P<name>.{1,300})'
)
_RANK_LINE = re.compile(r"(?:^|\s)RANK[=:]\s?(\d{1,9})\b")
_OPTION = re.compile(r"--(?:global[-_])?rank[= ](\d{1,9})\b")


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread."""

    name: str
    state: str
    """``idle``, ``active`` or ``active+gil``; empty if not printed."""
    frames: tuple[Frame, ...]
    """Innermost first."""
    is_current: bool = False
    """Whether it received the signal or the fault that made the dump."""


@dataclass(frozen=True, slots=True)
class ProcessStack:
    """All threads of one process that have a Python stack."""

    pid: int
    """-1 if not printed."""
    rank: int
    """By the file's name or the command; -1 if unknown."""
    host: str
    """By the file's name; empty if unknown."""
    command: str
    threads: tuple[ThreadStack, ...]
    reason: str = ""
    """Such as ``Segmentation fault``, if it was made by a fault."""

    @property
    def main(self) -> ThreadStack | None:
        """The main thread; of unnamed ones that which began in a module, else the last."""
        for thread in self.threads:
            if thread.name == "MainThread":
                return thread
        for thread in reversed(self.threads):
            if thread.frames and thread.frames[-1].function == "<module>":
                return thread
        return self.threads[-1] if self.threads else None

    @property
    def where(self) -> Frame | None:
        """The innermost frame of the user's own code in the main thread."""
        return innermost_own(self.main.frames) if self.main else None


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Processes whose main threads are at the same place."""

    members: tuple[ProcessStack, ...]
    frames: tuple[Frame, ...]
    """Frames of the first member, innermost first."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Their ranks, without those that are unknown."""
        return tuple(sorted(one.rank for one in self.members if one.rank >= 0))


@dataclass(slots=True)
class _Draft:
    pid: int = -1
    command: str = ""
    reason: str = ""
    threads: list[tuple[str, str, bool, list[Frame]]] = field(default_factory=list)


def read_stacks(text: str, name: str = "") -> tuple[ProcessStack, ...]:
    """The processes in a dump; empty if there is none. ``name`` is the file's, with its folder."""
    if text.lstrip()[:1] in ("[", "{"):
        return _of_json(text, name)
    drafts: list[_Draft] = []
    for line in text.splitlines():
        _feed(drafts, line[:4000])
    return tuple(_finish(draft, name) for draft in drafts if draft.threads)


def group_equal(stacks: Iterable[ProcessStack]) -> tuple[StackGroup, ...]:
    """Processes with equal stacks together, the smallest group first.

    Lines count in the user's own code only: a loop in a library is seen at any of its lines.
    """
    found: dict[object, list[ProcessStack]] = defaultdict(list)
    for stack in stacks:
        found[_key(stack.main.frames if stack.main else ())].append(stack)
    groups = [
        StackGroup(
            tuple(sorted(members, key=_order)), members[0].main.frames if members[0].main else ()
        )
        for members in found.values()
    ]
    return tuple(sorted(groups, key=lambda group: (len(group.members), _order(group.members[0]))))


def _key(frames: Sequence[Frame]) -> tuple[tuple[str, str, int], ...]:
    return tuple(
        (frame.function, frame.file, -1 if frame.is_library else frame.line) for frame in frames
    )


def _order(stack: ProcessStack) -> tuple[int, int, str]:
    return stack.rank, stack.pid, stack.host


def _feed(drafts: list[_Draft], line: str) -> None:
    if found := _PROCESS.match(line):
        if not line.startswith("Parent"):
            drafts.append(_Draft(int(found["pid"]), found["command"]))
    elif found := _FAULT_THREAD.search(line):
        _draft(drafts).threads.append((found["name"] or "", "", bool(found["current"]), []))
    elif found := _SPY_THREAD.match(line):
        _draft(drafts).threads.append((found["name"] or "", found["state"] or "", False, []))
    elif line.startswith(("Fatal Python error:", "Timeout (")):
        drafts.append(_Draft(reason=line.removeprefix("Fatal Python error: ").strip()[:300]))
    elif found := _FAULT_FRAME.match(line):
        number = int(found["line"]) if found["line"].isdigit() else -1
        _add(drafts, Frame(found["name"].strip(), found["file"], number))
    elif found := _SPY_FRAME.match(line):
        _add(drafts, Frame(found["name"], found["file"], int(found["line"] or -1)))


def _draft(drafts: list[_Draft]) -> _Draft:
    if not drafts:
        drafts.append(_Draft())
    return drafts[-1]


def _add(drafts: list[_Draft], frame: Frame) -> None:
    if drafts and drafts[-1].threads and len(drafts[-1].threads[-1][3]) < MAX_FRAMES:
        drafts[-1].threads[-1][3].append(frame)


def _finish(draft: _Draft, name: str) -> ProcessStack:
    rank, option = (
        rank_of_name(name),
        _OPTION.search(draft.command) or _RANK_LINE.search(draft.command),
    )
    threads = tuple(
        ThreadStack(thread, state, tuple(frames), current)
        for thread, state, current, frames in draft.threads
    )
    return ProcessStack(
        draft.pid, rank if rank >= 0 or option is None else int(option[1]), host_of_name(name),
        draft.command[:300], threads, draft.reason,
    )  # fmt: skip


def _of_json(text: str, name: str) -> tuple[ProcessStack, ...]:
    """``py-spy dump --json``: a list of threads, each with the process that it belongs to."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    drafts: dict[int, _Draft] = {}
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or not isinstance(row.get("frames"), list):
            continue
        given = row.get("pid")
        pid = given if isinstance(given, int) else -1
        info = row.get("process_info")
        command = str(info.get("command_line", "")) if isinstance(info, dict) else ""
        draft = drafts.setdefault(pid, _Draft(pid, command))
        frames = [_frame(one) for one in row["frames"][:MAX_FRAMES] if isinstance(one, dict)]
        state = ("active" if row.get("active") else "idle") + (
            "+gil" if row.get("owns_gil") else ""
        )
        draft.threads.append((str(row.get("thread_name") or ""), state, False, frames))
    return tuple(_finish(draft, name) for draft in drafts.values())


def _frame(row: dict[str, Any]) -> Frame:
    file = str(row.get("short_filename") or row.get("filename") or "")
    line = row.get("line")
    return Frame(str(row.get("name", "")), file, line if isinstance(line, int) and line > 0 else -1)
