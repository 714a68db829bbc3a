"""What holds the node's processes up: memory pressure, and the limits of their control group.

Documentation/accounting/psi.rst; cgroup-v1/memory.rst and cgroup-v2.rst.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
from headway.common.wire.messages.health import Finding
from headway.health.config import HealthConfig
from headway.health.sources.changes import Counters, Lasting, again_s, changed, read_text
from headway.health.sources.host import read_pressure

OOM_FILES: Final = ("memory.events", "memory.oom_control")
"""OOM counters of control groups, version 2 and 1; each has a line ``oom_kill N``."""


class HostLimits:
    """Reads /proc/pressure, and the agent's own control group, in which its run is."""

    def __init__(
        self, sysfs: Path, config: HealthConfig, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._clock_s = config, clock_s
        folders = group_folders(sysfs / "fs" / "cgroup", own_groups())
        self._memory = _first(folders, OOM_FILES)
        self._cpu = _first(folders, ("cpu.stat",))
        self._counters = Counters()
        self._waiting, self._throttled = (
            Lasting(config.pressure_hold_s, again_s(config)) for _ in range(2)
        )

    def read(self) -> list[Finding]:
        """What is news about them."""
        now_s = self._clock_s()
        return [*self._pressure(now_s), *self._kills(), *self._quota(now_s)]

    def close(self) -> None:
        """Nothing is held."""

    def _pressure(self, now_s: float) -> list[Finding]:
        try:
            fraction = read_pressure(["memory"]).get("memory.full", 0.0)
        except (ValueError, KeyError):
            return []  # not the format of the kernel
        if not self._waiting.is_due(fraction > self._config.memory_pressure, now_s):
            return []
        line = f"for {fraction:.0%} of the last 10 s all tasks waited for memory"
        path = str(Path(psutil.PROCFS_PATH, "pressure", "memory"))
        return [changed("memory_pressure", "host", "node", line, file=path)]

    def _kills(self) -> list[Finding]:
        if self._memory is None:
            return []
        killed = self._counters.growth("oom_kill", _field(self._memory, "oom_kill"))
        if not killed:
            return []
        line = f"{killed} processes were killed at the memory limit of {self._memory.parent}"
        path = str(self._memory)
        return [changed("cgroup_oom", "host", "node", line, file=path, count=killed)]

    def _quota(self, now_s: float) -> list[Finding]:
        if self._cpu is None:
            return []
        periods = self._counters.growth("periods", _field(self._cpu, "nr_periods"))
        held = self._counters.growth("throttled", _field(self._cpu, "nr_throttled"))
        fraction = held / periods if periods else 0.0
        if not self._throttled.is_due(fraction > self._config.throttled_fraction, now_s):
            return []
        line = f"the CPU quota of {self._cpu.parent} was used up in {fraction:.0%} of its periods"
        return [changed("cgroup_throttled", "host", "node", line, file=str(self._cpu))]


def own_groups() -> dict[str, str]:
    """Controller -> path of this process's control group; version 2 has the controller ``""``."""
    found: dict[str, str] = {}
    text = read_text(Path(psutil.PROCFS_PATH, "self", "cgroup")) or ""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        found |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    return found


def group_folders(root: Path, groups: dict[str, str]) -> list[Path]:
    """Where a process's control groups may be, the most specific first.

    In a container the path is often that of the host, and only the root of the mount exists.
    """
    found = []
    for controller, path in groups.items():
        mount = root / controller if controller else root
        folder = mount / path
        found += [folder, *[one for one in folder.parents if one.is_relative_to(mount)]]
    return found


def _first(folders: list[Path], names: tuple[str, ...]) -> Path | None:
    return next((one / name for one in folders for name in names if (one / name).is_file()), None)


def _field(path: Path, name: str) -> int | None:
    for line in (read_text(path) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None
