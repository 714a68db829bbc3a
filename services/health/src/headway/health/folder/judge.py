"""Puts the first cause before what follows from it."""

from __future__ import annotations

from headway.health.causes import SURE
from headway.health.diagnosis.diagnosis import Diagnosis, Observation
from headway.health.dumps.kernel import KernelMark
from headway.health.folder.counted import judge_counts
from headway.health.folder.errors import judge_errors
from headway.health.folder.evidence import DAY_S, Evidence
from headway.health.folder.faults import judge_faults
from headway.health.folder.hangs import judge_hang
from headway.health.folder.slowness import judge_slowness


def judge(evidence: Evidence) -> list[Diagnosis]:
    """What is wrong, the first cause in front; one of kind ``none`` if nothing is.

    A grave fault of a machine comes before a hang, as ranks hang by it; an error that ended a rank
    before that of ranks that lost a peer; and a hang before slowness.
    """
    faults, hangs = judge_faults(evidence), judge_hang(evidence) or judge_counts(evidence)
    errors, slow = judge_errors(evidence), judge_slowness(evidence)
    grave = [one for one in faults if one.confidence >= SURE]
    programs = [one for one in hangs if one.cause == "collective_mismatch"]
    rest = [one for one in faults if one.confidence < SURE]
    found = [*programs, *grave, *errors, *(h for h in hangs if h not in programs), *slow, *rest]
    return found or [_nothing(evidence)]


def _nothing(evidence: Evidence) -> Diagnosis:
    old = [
        (file, mark)
        for file, kernel in evidence.kernels.items()
        for mark in kernel.marks
        if mark.is_history
    ]
    why = tuple(
        f"{_name(mark)}{_age(mark, evidence.start_s)} before the job was started has no part in it"
        for _, mark in old[:4]
    )
    return Diagnosis(
        "none", "none", "nothing is wrong now",
        why=why or ("no rank waits for another, and no log, counter or stack shows a fault",),
        do="nothing", confidence=0.9 if evidence.dumps or evidence.kernels else 0.5,
        evidence=tuple(
            Observation(file, f"line {mark.line}: {mark.text.strip()[:160]}")
            for file, mark in old[:8]
        ),
    )  # fmt: skip


def _name(mark: KernelMark) -> str:
    where = f" on {mark.host}" if mark.host else ""
    return f"Xid {mark.xid}{where}" if mark.xid >= 0 else f"{mark.rule}{where}"


def _age(mark: KernelMark, start_s: float | None) -> str:
    if mark.at_s is None or start_s is None:
        return ""
    return f" {(start_s - mark.at_s) / DAY_S:.1f} days"
