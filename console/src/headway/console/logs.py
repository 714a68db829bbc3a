"""The log files of a run as one stream: newest lines of all processes, in order of time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.common.errors import InputError

LEVELS = ("debug", "info", "warning", "error", "critical")
_SHOWN = ("timestamp", "level", "event", "file", "service", "component", "run_id")


class LogReader:
    """Reads what is new in the folders' ``*.log`` files at each ``read``.

    A line is JSON as services write it, or plain text (a traceback, torch's own words), which takes the time
    and level of the line before it in its file.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        name: str = "",
        rank: int | None = None,
        level: str = "debug",
    ) -> None:
        if level not in LEVELS:
            raise InputError(
                f"level {level!r} is unknown", remedy=f"use one of {', '.join(LEVELS)}"
            )
        self._folders, self._name, self._rank = folders, name, rank
        self._least = LEVELS.index(level)
        self._offsets: dict[Path, int] = {}
        self._last: dict[Path, dict[str, Any]] = {}

    def check_name(self) -> None:
        """Raises InputError when no log file has the name's part."""
        names = sorted({path.stem for folder in self._folders for path in folder.glob("*.log")})
        if self._name and not any(self._name in name for name in names):
            raise InputError(f"no log has {self._name!r} in its name",
                             remedy=f"use a part of {', '.join(names) or 'a name; there is no log yet'}")  # fmt: skip

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
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]  # a line being written is left for the next time
        self._offsets[path] = self._offsets.get(path, 0) + len(whole)
        return [
            self._line(path, raw)
            for raw in whole.decode("utf-8", "replace").splitlines()
            if raw.strip()
        ]

    def _line(self, path: Path, raw: str) -> dict[str, Any]:
        try:
            fields = json.loads(raw)
        except ValueError:
            fields = None
        if not isinstance(fields, dict) or "event" not in fields:
            before: dict[str, Any] = self._last.get(path, {})
            kept: dict[str, Any] = {
                key: before[key] for key in ("timestamp", "level", "rank") if key in before
            }
            return {
                "timestamp": "",
                "level": "info",
                **kept,
                "file": path.stem,
                "event": raw.rstrip(),
            }
        self._last[path] = {"timestamp": "", "level": "info", **fields, "file": path.stem}
        return self._last[path]

    def _wanted(self, line: dict[str, Any]) -> bool:
        known = line["level"] in LEVELS and LEVELS.index(line["level"]) < self._least
        return not known and (self._rank is None or line.get("rank") == self._rank)


def as_text(line: dict[str, Any]) -> str:
    """One line for people: time, file, level, event and the other fields."""
    rest = " ".join(f"{key}={value}" for key, value in line.items() if key not in _SHOWN)
    clock = str(line["timestamp"])[11:23]
    return f"{clock:<12} {line['file']:<16} {line['level']:<7} {line['event']}{' ' + rest if rest else ''}"
