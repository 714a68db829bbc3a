"""Waits until a fault that freezes processes has taken."""

from __future__ import annotations

from headway.common.node.process import ProcessId
from headway.common.polling import wait_until
from headway.controller.faults import cgroups


def wait_frozen(process: ProcessId, limit_s: float = 10.0) -> bool:
    """Whether the process came into a frozen group in time."""

    def inside() -> bool:
        return any(
            str(process.pid) in (group / "cgroup.procs").read_text().split()
            and cgroups.is_frozen(group)
            for group in cgroups.groups()
            if group.name.endswith("-freezer")
        )

    return wait_until(inside, limit_s)
