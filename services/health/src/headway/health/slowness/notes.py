"""What agents found out about the machines, as far as it makes ranks slow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headway.common.wire.messages.health import Cause, Verdict

CAUSE_OF_RULE: Mapping[str, Cause] = {
    **dict.fromkeys(("gpu_throttled", "cpu_throttled", "cgroup_throttled", "memory_pressure",
                     "gpu_pcie_width", "gpu_pcie_replays"), "compute"),
    **dict.fromkeys(("tcp_retransmits", "nic_slow", "nic_errors", "nic_flap", "link_full",
                     "link_congested", "link_paused", "net_errors", "net_drops", "net_flap",
                     "gpu_link_full", "gpu_link_paused", "gpu_link_errors", "fabric_loss",
                     "fabric_delay", "fabric_slow"), "network"),
    **dict.fromkeys(("mount_hung", "mount_stalled", "mount_error"), "data"),
}  # fmt: skip
"""By the name of a rule: what it explains."""


@dataclass(frozen=True, slots=True)
class Note:
    """A finding about a node."""

    cause: Cause
    node: int
    text: str


def note_of(verdict: Verdict) -> Note | None:
    """What a verdict on a finding explains of slowness; None if nothing."""
    part, _, rest = verdict.id.partition(":")
    cause = CAUSE_OF_RULE.get(rest.partition(":")[0]) if part == "finding" else None
    if cause is None:
        return None
    text = next((row.value for row in verdict.evidence if row.name in ("finding", "line")), "")
    return Note(cause, verdict.node, text or verdict.kind.replace("_", " "))


def notes_of(verdicts: Iterable[Verdict]) -> list[Note]:
    """What these verdicts explain of slowness."""
    return [note for verdict in verdicts if (note := note_of(verdict)) is not None]
