"""The log files of a run as one stream: newest lines of all processes, in order of time."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from headway.common.errors import InputError
from headway.common.log_rotation import rotated
from headway.common.printable import printable

LEVELS = ("debug", "info", "warning", "error", "critical")
COLUMNS = ("timestamp", "level", "rank", "file", "event", "fields")
"""Columns of a data frame of log lines; ``fields`` holds the other fields as JSON."""
_SHOWN = ("timestamp", "level", "event", "file", "service", "component", "run_id")
MAX_LINE_BYTES = 1 << 16
"""Most bytes shown of a line, from its beginning."""
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def since_unix_s(since: float | str, now_unix_s: float) -> float:
    """The moment ``since`` before now: seconds, or text such as ``90s``, ``5m``, ``2h`` or ``1d``.

    Raises:
        InputError: it is neither.
    """
    found = _AGO.fullmatch(str(since))
    if found is None:
        raise InputError(
            f"{since!r} is not a length of time", remedy="use for example 90s, 5m, 2h or 1d"
        )
    return now_unix_s - float(found[1]) * _UNITS[found[2]]


class LogReader:
    """Reads what is new in the folders' ``*.log`` files at each ``read``.

    The lines of ``NAME.log.1``, which were written before the newest rotation, come first.

    A line is JSON as services write it, or plain text (a traceback, torch's own output), which
    takes the time and level of the line before it in its file.

    Args:
        folders: where the files are.
        name: part of the file's name.
        rank: lines of this rank only.
        level: the lowest level.
        since: only lines of this time before now, as ``since_unix_s`` takes it.

    Raises:
        InputError: ``level`` or ``since`` is unknown, or no file has ``name`` in its name.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        name: str = "",
        rank: int | None = None,
        level: str = "debug",
        since: float | str | None = None,
    ) -> None:
        if level not in LEVELS:
            raise InputError(
                f"level {level!r} is unknown", remedy=f"use one of {', '.join(LEVELS)}"
            )
        self._folders, self._name, self._rank = folders, name, rank
        self._least = LEVELS.index(level)
        self._since_unix_s = -math.inf if since is None else since_unix_s(since, time.time())
        self._places: dict[Path, tuple[int, int]] = {}
        """File -> its inode and how much of it was read."""
        self._last: dict[Path, dict[str, Any]] = {}
        self._unreadable: set[Path] = set()
        self._check_name()

    def _check_name(self) -> None:
        names = sorted({path.stem for folder in self._folders for path in folder.glob("*.log")})
        if self._name and not any(self._name in name for name in names):
            known = ", ".join(names)
            raise InputError(
                f"no log has {self._name!r} in its name",
                remedy=f"use a part of {known}" if known else "there is no log yet; try again",
            )

    def read(self) -> list[dict[str, Any]]:
        """New lines, oldest first; each has ``file``, ``timestamp``, ``level`` and ``event``."""
        lines: list[dict[str, Any]] = []
        for folder in self._folders:
            for path in sorted(folder.glob("*.log")):
                if self._name in path.stem:
                    lines += self._new(path)
        return sorted(
            (line for line in lines if self._wanted(line)), key=lambda line: str(line["timestamp"])
        )

    def _new(self, path: Path) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        try:
            found += self._older(path)
            with path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if self._places.get(path, (inode, 0))[0] != inode:  # it was rotated just now
                    found += self._older(path)
                found += self._rest(path, file)
        except OSError as error:  # the others are shown all the same
            if path not in self._unreadable:
                self._unreadable.add(path)
                found.append(self._line(path, f"this file cannot be read: {error.strerror}"))
        return found

    def _older(self, path: Path) -> list[dict[str, Any]]:
        """What is left to read of a log that was moved aside, or all of it if nothing was read."""
        with contextlib.suppress(FileNotFoundError), rotated(path).open("rb") as older:
            inode = os.fstat(older.fileno()).st_ino
            if self._places.get(path, (inode, 0))[0] == inode:
                found = list(self._rest(path, older))
                self._places[path] = (0, 0)
                return found
        return []

    def _rest(self, path: Path, file: BinaryIO) -> Iterator[dict[str, Any]]:
        """The lines of an open file behind what was read of the log at ``path``."""
        now = os.fstat(file.fileno())
        inode, offset = self._places.get(path, (0, 0))
        file.seek(offset if inode == now.st_ino and offset <= now.st_size else 0)
        while (raw := _next_line(file)) is not None:
            self._places[path] = (now.st_ino, file.tell())
            if text := raw.decode("utf-8", "replace").strip():
                yield self._line(path, text)

    def _line(self, path: Path, raw: str) -> dict[str, Any]:
        try:
            fields = json.loads(raw)
        except (ValueError, RecursionError):
            fields = None
        if isinstance(fields, dict) and "event" in fields:
            self._last[path] = {**_sound(fields), "file": path.stem}
            return self._last[path]
        before: dict[str, Any] = self._last.get(path, {})
        kept: dict[str, Any] = {
            key: before[key] for key in ("timestamp", "level", "rank") if key in before
        }
        return {"timestamp": "", "level": "info", **kept, "file": path.stem, "event": raw}

    def _wanted(self, line: dict[str, Any]) -> bool:
        if line["level"] in LEVELS and LEVELS.index(line["level"]) < self._least:
            return False
        if self._rank is not None and line.get("rank") != self._rank:
            return False
        return self._since_unix_s <= _unix_s(line["timestamp"])


def _unix_s(timestamp: object) -> float:
    """Unix time of an ISO timestamp; 0 for what has none."""
    try:
        return datetime.datetime.fromisoformat(str(timestamp)).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _next_line(file: BinaryIO) -> bytes | None:
    """The next whole line, or None.

    A very long line is returned as its beginning and its length. None stands for a line that is
    still being written, and for the end.
    """
    raw = file.readline(MAX_LINE_BYTES)
    more, last = 0, raw
    while last and not last.endswith(b"\n"):
        last = file.readline(MAX_LINE_BYTES)
        more += len(last)
    if not last:
        return None
    return raw + b" ... and %d more bytes" % more if more else raw


def _sound(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a line with the types that a reader expects of the known ones.

    They may have other types, because what a rank prints may be JSON, too.
    """
    level, event = fields.get("level"), fields["event"]
    return {
        **fields,
        "timestamp": str(fields.get("timestamp", "")),
        "level": level if level in LEVELS else "info",
        "event": event if isinstance(event, str) else json.dumps(event),
    }


def as_text(line: dict[str, Any]) -> str:
    """One line for people: time, file, level, event and the other fields, all printable."""
    rest = "".join(f" {key}={value}" for key, value in line.items() if key not in _SHOWN)
    clock = str(line["timestamp"])[11:23]
    text = f"{clock:<12} {line['file']:<16} {line['level']:<7} {line['event']}{rest}"
    return printable(text)


def as_row(line: dict[str, Any]) -> tuple[Any, ...]:
    """One line as a row of ``COLUMNS``."""
    rank = line.get("rank")
    rest = {key: value for key, value in line.items() if key not in COLUMNS}
    return (
        line["timestamp"],
        line["level"],
        rank if isinstance(rank, int) else None,
        line["file"],
        str(line["event"]),
        json.dumps(rest, default=str),
    )
