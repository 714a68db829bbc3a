"""A verdict on a run as a diagnosis."""

from __future__ import annotations

from typing import get_args

from headway.common.wire.messages.health import Verdict, VerdictKind
from headway.health.diagnosis.diagnosis import Cause, Diagnosis, Kind, Observation, Subject

_HANGS: frozenset[VerdictKind] = frozenset(
    {"silence", "stopped", "unexplained_hang", "data_stall", "fabric_cut", "fabric_split"}
)
_CAUSES: dict[VerdictKind, Cause] = {
    "silence": "host_stall", "stopped": "host_stall", "data_stall": "data_stall",
    "fabric_cut": "network", "fabric_split": "network", "network_fault": "network",
    "gpu_fault": "gpu_fault", "pcie_error": "machine_fault", "memory_error": "memory_fault",
    "out_of_memory": "out_of_memory", "disk_full": "disk_fault", "disk_fault": "disk_fault",
    "kernel_stall": "machine_fault", "node_silent": "machine_fault", "user_error": "program_error",
    "slow_rank": "compute",
}  # fmt: skip
_WHAT: dict[VerdictKind, str] = {
    "silence": "holds up the run", "stopped": "was stopped", "crash": "has ended",
    "unexplained_hang": "no rank moves, and none can be blamed for certain",
    "data_stall": "gets no data", "node_silent": "does not report", "slow_rank": "is slow",
    "fabric_cut": "reaches nobody", "fabric_split": "some nodes do not reach each other",
}  # fmt: skip


def diagnosis_of(verdict: Verdict) -> Diagnosis:
    """The same facts; ``done`` is among the reasons, as the driver's answer to it."""
    facts = {one.name: one.value for one in verdict.evidence}
    subject = Subject(verdict.rank, f"node {verdict.node}" if verdict.node >= 0 else "")
    what = _WHAT.get(verdict.kind, verdict.kind.replace("_", " "))
    summary = f"{subject} {what}" if str(subject) and verdict.kind in _WHAT else what
    if line := facts.get("line", ""):
        summary = f"{what}{f' on {subject}' if str(subject) else ''}: {line[:160]}"
    why = [f"{one.name.replace('_', ' ')}: {one.value}" for one in verdict.evidence
           if one.name not in ("line", "where", "cause")]  # fmt: skip
    if verdict.taken:
        why.append(f"done: {verdict.taken}")
    return Diagnosis(
        _kind(verdict),
        _cause(verdict, facts.get("cause", "")),
        summary,
        culprits=(subject,) if verdict.rank >= 0 or verdict.node >= 0 else (),
        where=facts.get("where", ""),
        why=tuple(why),
        do=verdict.remedy,
        confidence=verdict.confidence,
        since=verdict.unix_s or None,
        evidence=tuple(
            Observation(one.source, f"{one.name}: {one.value}") for one in verdict.evidence
        ),
    )


def _cause(verdict: Verdict, stated: str) -> Cause:
    """That of its kind; an unexplained hang may state why nobody is named."""
    causes = {one: one for one in get_args(Cause)}
    return _CAUSES.get(verdict.kind) or causes.get(stated, "unknown")


def _kind(verdict: Verdict) -> Kind:
    if verdict.kind == "slow_rank":
        return "slow"
    return "hang" if verdict.kind in _HANGS else "fault"
