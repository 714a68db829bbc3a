"""The cause that each kind of problem stands for, as long as nothing more is known: the one table.

A verdict on a hang states its own cause, and a rule may name a narrower one than its kind.
"""

from __future__ import annotations

from typing import Final

from headway.common.wire.messages.health import Cause, FindingSubject, VerdictKind

CAUSES: Final[dict[VerdictKind, Cause]] = {
    "crash": "unknown", "stopped": "host_stall", "silence": "host_stall",
    "unexplained_hang": "unknown", "data_stall": "data_stall", "node_silent": "machine_fault",
    "fabric_cut": "network", "fabric_split": "network", "slow_rank": "compute",
    "user_error": "program_error", "gpu_fault": "gpu_fault", "network_fault": "network",
    "pcie_error": "machine_fault", "out_of_memory": "out_of_memory", "disk_full": "disk_fault",
    "disk_fault": "disk_fault", "memory_error": "memory_fault", "kernel_stall": "machine_fault",
    "crash_report": "unknown", "collective_timeout": "unknown", "peer_lost": "unknown",
    "nan_loss": "unknown", "clock_error": "machine_fault", "host_pressure": "host_stall",
    "unobserved": "unreported", "not_finite": "unknown",
    "silent_corruption": "machine_fault", "link_flapping": "link_flap", "common_fault": "unknown",
}  # fmt: skip


SURE: Final = 0.7
"""A finding about a machine that is as certain may be why ranks end or wait."""


def cause_of(kind: VerdictKind, subject: FindingSubject | str = "") -> Cause:
    """The cause of a kind; a network's fault that one port shows is that of its link."""
    if kind == "network_fault" and subject == "nic":
        return "link_fault"
    return CAUSES.get(kind, "unknown")
