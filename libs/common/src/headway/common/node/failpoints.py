"""Named crash points: places in the code where a drill may end, stop or delay a process.

``failpoint("arena.seal", rank=1, step=7)`` does nothing until that name is armed. Arming writes a
small shared file, so it reaches processes that are already running. Every armed entry fires once
across all processes: the first process that reaches it creates the claim file (O_EXCL) and acts.

File: segment header; word 8 = version of the entries, 0 = nothing armed; word 9 = last version
used; word 10 = length; then the entries as MessagePack. Writers take a file lock; readers compare
the version again after parsing.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from headway.common.errors import HeadwayError
from headway.common.node.segment import LINE_BYTES, Segment

_MAGIC = b"HWFAIL\0\0"
_VERSION = 1
NBYTES = 65536
ARMED, LAST, LENGTH = range(8, 11)
BODY = 2 * LINE_BYTES


class FailpointError(HeadwayError):
    """Raised by an armed failpoint whose action is ``raise``."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    """One armed entry; it matches a call that has this name and at least these ``where`` values."""

    name: str
    where: dict[str, int]
    action: str
    key: str

    def matches(self, name: str, where: Mapping[str, int]) -> bool:
        return self.name == name and all(where.get(k) == v for k, v in self.where.items())


class _State:
    """This process's view of the failpoints.

    ``words`` is a plain tuple while unconfigured, so the check costs the same.
    """

    path: Path | None = None
    segment: Segment | None = None
    words: Sequence[int] = (0,) * 16
    where: dict[str, int] = {}  # noqa: RUF012 - replaced whole, never changed in place
    version = 0
    entries: tuple[Failpoint, ...] = ()
    """Armed, and not known to have fired."""


def failpoint(name: str, **where: int) -> None:
    """A point that may be armed. While unarmed it costs one memory read."""
    if _State.words[ARMED]:
        _reached(name, where)


def damage_at(name: str, **where: int) -> str:
    """What to do wrong at this point, once: a word that the caller knows, or nothing.

    For damage that only the caller can do, such as to a tensor. While unarmed it costs one memory
    read.
    """
    if not _State.words[ARMED]:
        return ""
    entry = _claimed(name, where)
    return entry.action.removeprefix("damage:") if entry is not None else ""


def configure(path: Path | None, **where: int) -> None:
    """Use the file ``path`` from now on, created if absent.

    ``where`` (rank, node) is added to every call.

    None turns failpoints off for this process. Forked children keep their parent's configuration.
    """
    if _State.segment is not None:
        _State.words = (0,) * 16
        _State.segment.close()
        _State.segment = None
    _State.path, _State.version, _State.entries, _State.where = path, 0, (), dict(where)
    if path is not None:
        _State.segment = open_file(path)
        _State.words = _State.segment.words


def add_where(**where: int) -> None:
    """Values learned later, such as the rank of a standby."""
    _State.where = {**_State.where, **where}


def open_file(path: Path) -> Segment:
    """The file of armed entries, created if absent."""
    return Segment.create_or_open(path, NBYTES, _MAGIC, _VERSION)


def _reached(name: str, where: dict[str, int]) -> None:
    entry = _claimed(name, where)
    if entry is not None:
        _act(entry)


def _claimed(name: str, where: dict[str, int]) -> Failpoint | None:
    """The armed entry of this point that now fires in this process."""
    version = _State.words[ARMED]
    if version != _State.version and _State.segment is not None:
        entries = parse(_State.segment)
        if _State.words[ARMED] != version:
            return None  # being changed right now: not armed yet
        _State.entries, _State.version = tuple(entries), version
    places = {**_State.where, **where}
    for entry in _State.entries:
        if entry.matches(name, places) and _State.path is not None:
            # it fires once, here or in the process that was first
            _State.entries = tuple(one for one in _State.entries if one is not entry)
            if _claim(_State.path, entry):
                return entry
    return None


def _claim(path: Path, entry: Failpoint) -> bool:
    try:
        fd = os.open(
            claim_path(path, entry.key), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
    except OSError:
        return False  # another process was first, or the run's folder is gone
    try:
        record = {"name": entry.name, "pid": os.getpid(), "at_ns": time.monotonic_ns()}
        os.write(fd, json.dumps(record).encode())
    finally:
        os.close(fd)
    return True


def _act(entry: Failpoint) -> None:
    if entry.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif entry.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif entry.action == "raise":
        raise FailpointError(
            f"failpoint {entry.name} fired", remedy="disarm it if this is not a drill"
        )
    else:
        how, _, seconds = entry.action.partition(":")
        _LASTING[how](float(seconds))


def _hold_lock(seconds: float) -> None:
    """Hold the interpreter's lock, so that no thread of the process runs.

    It reads a timer. A sleep would be ended early by the signal that asks for stacks.
    """
    libc = ctypes.PyDLL(None)
    timer = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC)
    whole_s, rest_ns = divmod(max(1, round(seconds * 1e9)), 10**9)
    libc.timerfd_settime(timer, 0, (ctypes.c_long * 4)(0, 0, whole_s, rest_ns), None)
    libc.read(timer, ctypes.create_string_buffer(8), 8)
    os.close(timer)


def _collect(seconds: float) -> None:
    """Make garbage and collect it, over and over."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        kept: list[list[object]] = [[] for _ in range(_GARBAGE)]
        for one, other in itertools.pairwise(kept):
            one.append(other)
        gc.collect()


_GARBAGE = 100_000
_LASTING: dict[str, Callable[[float], object]] = {
    "sleep": time.sleep,
    "gil": _hold_lock,
    "gc": _collect,
}
"""What a point does for some seconds."""


def claim_path(path: Path, key: str) -> Path:
    """The file that says which process an entry of the file ``path`` fired in."""
    return path.with_name(f"{path.name}.{key}.fired")


def parse(segment: Segment) -> list[Failpoint]:
    """The entries of a file that has some; none while it is being written."""
    body = bytes(segment.buffer[BODY : BODY + min(segment.words[LENGTH], NBYTES - BODY)])
    try:
        return msgspec.msgpack.decode(body, type=list[Failpoint])
    except ValueError:  # from msgspec or from decoding UTF-8
        return []  # half-written: the caller sees that the version changed
