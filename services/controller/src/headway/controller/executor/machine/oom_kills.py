"""Whether the kernel ended a process because memory ran out.

A process killed so leaves no last words, and its state is that of any other killed one. But its
control group counts such kills: ``oom_kill`` of ``memory.events`` (cgroup v2), or of
``memory.oom_control`` (v1), both described in the kernel's admin-guide.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from headway.common.node.process import ProcessId

LOOK_S = 1.0
"""A process rarely changes its group, and one that dies sooner after its start is called killed."""


class OomKills:
    """Follows the counters of living processes' groups; ``look`` costs two small reads each."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self._root, self._proc = root, proc
        self._counters: dict[ProcessId, tuple[Path, int]] = {}
        self._looked_s = -LOOK_S

    def look(self, living: Collection[ProcessId], now_s: float) -> None:
        """Note the counters as they are, at most once per ``LOOK_S``.

        Those of processes that are not in ``living`` stay until their end has been asked about.
        """
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        for process in living:
            if (path := self._counter_of(process)) is not None:
                self._counters[process] = path, _count(path)

    def took(self, process: ProcessId) -> bool:
        """Whether the kernel has killed something in the group of this dead process.

        It compares with the counter at the last ``look``, and forgets the process.
        """
        path, before = self._counters.pop(process, (None, 0))
        return path is not None and _count(path) > before

    def _counter_of(self, process: ProcessId) -> Path | None:
        try:
            lines = (self._proc / str(process.pid) / "cgroup").read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            _, controllers, group = line.split(":", 2)
            for mount, name in _places(controllers):
                path = self._root / mount / group.lstrip("/") / name
                if path.exists():
                    return path
        return None


def _places(controllers: str) -> list[tuple[str, str]]:
    """(mount below the root, name of the file) by the controllers of a line in /proc/PID/cgroup."""
    if "memory" in controllers.split(","):
        return [("memory", "memory.oom_control")]
    return [] if controllers else [("", "memory.events"), ("unified", "memory.events")]


def _count(path: Path) -> int:
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:  # the group is gone
        return 0
    return next((int(row[1]) for row in rows if len(row) == 2 and row[0] == "oom_kill"), 0)
