"""Whether a control group keeps a process from running, in either version of the hierarchy."""

from __future__ import annotations

import contextlib
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def frozen_by(pid: int) -> str:
    """The v1 cgroup that keeps a process frozen, "" if none does.

    Such a process takes even SIGKILL only once it is thawed; one of v2 can be killed.
    """
    with contextlib.suppress(OSError):
        for controllers, path in _groups(pid):
            if "freezer" in controllers.split(","):
                state = CGROUPS / "freezer" / path.lstrip("/") / "freezer.state"
                return path if state.read_text().strip() != "THAWED" else ""
    return ""


def is_frozen(pid: int) -> bool:
    """Whether a control group of either version keeps a process frozen."""
    if frozen_by(pid):
        return True
    with contextlib.suppress(OSError):
        for controllers, path in _groups(pid):
            if not controllers:
                events = CGROUPS / path.lstrip("/") / "cgroup.events"
                return "frozen 1" in events.read_text()
    return False


def _groups(pid: int) -> list[tuple[str, str]]:
    """(controllers, path) of every hierarchy; the one of v2 names no controllers."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    rows = [line.split(":", 2) for line in lines]
    return [(controllers, path) for _, controllers, path in rows]
