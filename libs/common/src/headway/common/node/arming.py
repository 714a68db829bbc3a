"""Arms failpoints: writes the file that ``headway.common.node.failpoints`` reads."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from headway.common.errors import InputError
from headway.common.node.failpoints import (
    ARMED,
    BODY,
    LAST,
    LENGTH,
    NBYTES,
    Failpoint,
    claim_path,
    open_file,
    parse,
)
from headway.common.node.segment import Segment

_ACTION = re.compile(r"kill|stop|raise|(sleep|gil|gc):\d+(\.\d+)?|damage:[a-z_]+")
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,80}")


def arm(
    path: Path,
    name: str,
    action: str = "kill",
    where: Mapping[str, int] | None = None,
    key: str | None = None,
) -> str:
    """Arm a failpoint in the file ``path``; returns its key. An entry of the same key is replaced.

    ``action`` is kill, stop, raise, ``sleep``, ``gil`` or ``gc:<seconds>``, or ``damage:<what>``
    for a point that asks ``damage_at``. The default key follows from name, action and where. A key
    that has fired does not fire again until ``disarm`` clears it.

    Raises:
        InputError: unknown action, a key unfit for a file name, or no room for more entries.
    """
    if not _ACTION.fullmatch(action):
        raise InputError(
            f"failpoint action {action!r} is unknown",
            remedy="use kill, stop, raise, sleep:<s>, gil:<s>, gc:<s> or damage:<what>",
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
    claims = [claim_path(path, k) for k in (gone if key is None else [key])]
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


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Segment]:
    segment = open_file(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield segment
    finally:
        os.close(fd)
        segment.close()


def _read(segment: Segment) -> list[Failpoint]:
    return parse(segment) if segment.words[ARMED] else []


def _write(segment: Segment, entries: Sequence[Failpoint]) -> None:
    body = msgspec.msgpack.encode(list(entries))
    if len(body) > NBYTES - BODY:
        raise InputError(
            f"{len(entries)} failpoints do not fit in {segment.path}", remedy="disarm some"
        )
    words = segment.words
    words[ARMED] = 0
    words[LAST] += 1
    segment.buffer[BODY : BODY + len(body)] = body
    words[LENGTH] = len(body)
    words[ARMED] = words[LAST] if entries else 0
