"""What is news about a counter or a state: growth since it was first read, and changes that last.

Counters count since boot, so their first value is a baseline. A counter that becomes smaller was
reset, and is a new baseline.
"""

from __future__ import annotations

import math
import time
from collections import deque
from pathlib import Path
from typing import Final

from headway.common.node.machine import boot_id
from headway.common.wire.messages.health import Finding, FindingSource, FindingSubject
from headway.health.config import HealthConfig

MAX_FILE_BYTES: Final = 1 << 16
"""Read of a file of the kernel; more is not one."""


def boot_number() -> int:
    """A number that differs between boots, as a file's inode does between files."""
    return int(boot_id()[:8] or "0", 16)


def changed(
    rule: str,
    source: FindingSource,
    subject: FindingSubject,
    line: str,
    *,
    name: str = "",
    file: str = "",
    detail: str = "",
    uuid: str = "",
    count: int = 1,
) -> Finding:
    """The finding of a change that was seen now. Later ones of a file have a larger offset."""
    return Finding(
        rule=rule,
        source=source,
        subject=subject,
        name=name,
        uuid=uuid,
        file=file or f"{source}/{name}/{rule}",
        inode=boot_number(),
        offset=time.monotonic_ns(),
        line=line,
        detail=detail,
        count=count,
    )


class Counters:
    """The newest values of counters, by any name."""

    def __init__(self) -> None:
        self._values: dict[str, int] = {}

    def growth(self, name: str, value: int | None) -> int:
        """By how much a counter has grown since the last call; 0 at first and without a value."""
        if value is None:
            return 0
        grown = value - self._values.get(name, value)
        self._values[name] = value
        return max(grown, 0)


class Window:
    """Adds up growth over a time, and reports a sum beyond a limit once."""

    def __init__(self, limit: int, within_s: float) -> None:
        self._limit, self._within_s = limit, within_s
        self._parts: deque[tuple[float, int]] = deque()

    def add(self, grown: int, now_s: float) -> int:
        """The sum if it has reached the limit, and the window begins anew; else 0."""
        if grown:
            self._parts.append((now_s, grown))
        while self._parts and now_s - self._parts[0][0] > self._within_s:
            self._parts.popleft()
        total = sum(part for _, part in self._parts)
        if total < self._limit:
            return 0
        self._parts.clear()
        return total


class Lasting:
    """A state that is reported once it has lasted, and again while it lasts.

    The monitor takes a state that is no longer reported for one that has ended.

    Args:
        hold_s: how long it must have lasted.
        again_s: from one report to the next.
    """

    def __init__(self, hold_s: float = 0.0, again_s: float = math.inf) -> None:
        self._hold_s, self._again_s = hold_s, again_s
        self._since_s: float | None = None
        self._reported_s: float | None = None

    @property
    def is_off(self) -> bool:
        """Whether the state was off when it was last asked for."""
        return self._since_s is None

    def is_due(self, is_on: bool, now_s: float) -> bool:
        """Whether the state, which is on or off now, is to be reported now."""
        if not is_on:
            self._since_s = self._reported_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < self._hold_s:
            return False
        if self._reported_s is not None and now_s - self._reported_s < self._again_s:
            return False
        self._reported_s = now_s
        return True


def again_s(config: HealthConfig) -> float:
    """How often a state that lasts is reported: often enough that its episode stays open."""
    return config.log_quiet_s / 4


def read_text(path: Path) -> str | None:
    """A small file of the kernel without the blanks around it; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode(errors="replace").strip()
    except (OSError, ValueError):
        return None


def read_int(path: Path) -> int | None:
    """The number in a file of the kernel; None if there is none."""
    text = read_text(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def children(folder: Path) -> list[str]:
    """The names in a folder, sorted; none if it cannot be read."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
