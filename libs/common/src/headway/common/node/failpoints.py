"""Named crash points: places in the code where a drill may end, stop or delay a process.

``failpoint("arena.seal", rank=1, step=7)`` does nothing until that name is armed. Arming writes a
small shared file, so it reaches processes that are already running. Every armed entry fires once
across all processes: the first process that reaches it creates the claim file (O_EXCL) and acts.

File: segment header; word 8 = version of the entries, 0 = nothing armed; word 9 = last version
used; word 10 = length; then the entries as MessagePack. Writers take a file lock; readers compare
the version again after parsing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from headway.common.errors import HeadwayError, InputError
from headway.common.node.segment import LINE_BYTES, Segment

_MAGIC = b"HWFAIL\0\0"
_VERSION = 1
_NBYTES = 65536
_ARMED, _LAST, _LENGTH = range(8, 11)
_BODY = 2 * LINE_BYTES
_ACTION = re.compile(r"kill|stop|raise|sleep:\d+(\.\d+)?")
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,80}")


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


def failpoint(name: str, **where: int) -> None:
    """A point that may be armed. While unarmed it costs one memory read."""
    if _State.words[_ARMED]:
        _reached(name, where)


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
        _State.segment = Segment.create_or_open(path, _NBYTES, _MAGIC, _VERSION)
        _State.words = _State.segment.words


def add_where(**where: int) -> None:
    """Values learned later, such as the rank of a standby."""
    _State.where = {**_State.where, **where}


def arm(
    path: Path,
    name: str,
    action: str = "kill",
    where: Mapping[str, int] | None = None,
    key: str | None = None,
) -> str:
    """Arm a failpoint in the file ``path``; returns its key. An entry of the same key is replaced.

    ``action`` is kill, stop, raise or sleep:<seconds>. The default key follows from name, action
    and where. A key that has fired does not fire again until ``disarm`` clears it.

    Raises:
        InputError: unknown action, a key unfit for a file name, or no room for more entries.
    """
    if not _ACTION.fullmatch(action):
        raise InputError(
            f"failpoint action {action!r} is unknown", remedy="use kill, stop, raise or sleep:<s>"
        )
    places = dict(where or {})
    if key is None:
        tail = hashlib.sha256(repr((name, action, sorted(places.items()))).encode()).hexdigest()[
            :12
        ]
        key = f"{name}-{tail}"
    if not _KEY.fullmatch(key):
        raise InputError(
            f"failpoint key {key!r} is unfit for a file name", remedy="use letters, digits, '._-'"
        )
    new = Failpoint(name, places, action, key)
    with _locked(path) as segment:
        _write(segment, [*(e for e in _read(segment) if e.key != key), new])
    return key


def disarm(path: Path, key: str | None = None) -> None:
    """Take one entry, or all, away, and forget that it fired."""
    with _locked(path) as segment:
        entries = _read(segment)
        gone = [e.key for e in entries if key in (None, e.key)]
        _write(segment, [e for e in entries if e.key not in gone])
    claims = [_claim_path(path, k) for k in (gone if key is None else [key])]
    for claim in [*claims, *(path.parent.glob(f"{path.name}.*.fired") if key is None else ())]:
        claim.unlink(missing_ok=True)


def armed(path: Path) -> list[Failpoint]:
    """The entries in the file, fired or not."""
    with _locked(path) as segment:
        return _read(segment)


def fired(path: Path) -> dict[str, dict[str, int | str]]:
    """What has fired: key -> {"name", "pid", "at_ns" (monotonic)}."""
    claims = {}
    for claim in sorted(path.parent.glob(f"{path.name}.*.fired")):
        # Empty if its process was killed between creating and writing it.
        text = claim.read_text() or "{}"
        claims[claim.name.removeprefix(f"{path.name}.").removesuffix(".fired")] = json.loads(text)
    return claims


def _reached(name: str, where: dict[str, int]) -> None:
    version = _State.words[_ARMED]
    if version != _State.version and _State.segment is not None:
        entries = _parse(_State.segment)
        if _State.words[_ARMED] != version:
            return  # being changed right now: not armed yet
        _State.entries, _State.version = tuple(entries), version
    places = {**_State.where, **where}
    for entry in _State.entries:
        if entry.matches(name, places) and _State.path is not None and _claim(_State.path, entry):
            _act(entry)


def _claim(path: Path, entry: Failpoint) -> bool:
    try:
        fd = os.open(
            _claim_path(path, entry.key), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
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
        time.sleep(float(entry.action.removeprefix("sleep:")))


def _claim_path(path: Path, key: str) -> Path:
    return path.with_name(f"{path.name}.{key}.fired")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Segment]:
    segment = Segment.create_or_open(path, _NBYTES, _MAGIC, _VERSION)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield segment
    finally:
        os.close(fd)
        segment.close()


def _read(segment: Segment) -> list[Failpoint]:
    return _parse(segment) if segment.words[_ARMED] else []


def _parse(segment: Segment) -> list[Failpoint]:
    body = bytes(segment.buffer[_BODY : _BODY + min(segment.words[_LENGTH], _NBYTES - _BODY)])
    try:
        return msgspec.msgpack.decode(body, type=list[Failpoint])
    except ValueError:  # from msgspec or from decoding UTF-8
        return []  # half-written: the caller sees that the version changed


def _write(segment: Segment, entries: Sequence[Failpoint]) -> None:
    body = msgspec.msgpack.encode(list(entries))
    if len(body) > _NBYTES - _BODY:
        raise InputError(
            f"{len(entries)} failpoints do not fit in {segment.path}", remedy="disarm some"
        )
    words = segment.words
    words[_ARMED] = 0
    words[_LAST] += 1
    segment.buffer[_BODY : _BODY + len(body)] = body
    words[_LENGTH] = len(body)
    words[_ARMED] = words[_LAST] if entries else 0
