"""Faults of machines that a folder shows: the first cause, with what follows from it."""

from __future__ import annotations

from collections import defaultdict

from headway.health.diagnosis.diagnosis import Diagnosis, Observation, Subject
from headway.health.dumps.kernel import KernelMark
from headway.health.folder.evidence import Evidence
from headway.health.folder.links import judge_links

_NOTED = frozenset({"info", "notice"})


def judge_faults(evidence: Evidence) -> list[Diagnosis]:
    """Faults of links, GPUs and machines since the job was started; the likeliest cause first."""
    return [*judge_links(evidence), *_of_kernels(evidence), *_lost_gpus(evidence)]


def _lost_gpus(evidence: Evidence) -> list[Diagnosis]:
    """GPUs that nvidia-smi itself calls lost, where no kernel's log was collected."""
    known = {kernel.host for kernel in evidence.kernels.values()}
    found = {}
    for sample in evidence.gpus:
        lost = [text for text in sample.problems.values() if "lost" in text.lower()]
        if lost and sample.host not in known:
            found[sample.host, sample.pci or str(sample.index)] = lost[0]
    return [
        Diagnosis(
            "fault",
            "gpu_lost",
            f"nvidia-smi calls GPU {gpu} of {host or 'its node'} lost",
            culprits=(Subject(evidence.rank_of(host, gpu), host, gpu),),
            where=f"gpu {gpu} of {host}",
            why=(f"it prints {text!r}; the kernel's log of that node was not collected",),
            do=f"replace node {host}; power-cycle it",
            confidence=0.85,
        )
        for (host, gpu), text in found.items()
    ]


def _of_kernels(evidence: Evidence) -> list[Diagnosis]:
    """One for each thing that a kernel reports, the gravest and earliest first."""
    causes: dict[tuple[str, str], list[tuple[str, KernelMark]]] = defaultdict(list)
    symptoms: set[str] = set()
    for file, kernel in evidence.kernels.items():
        for mark in kernel.news():
            if mark.is_symptom:
                symptoms.add(mark.host)
            elif mark.severity not in _NOTED and not (mark.subject == "nic" and evidence.growths):
                # what the bus says of a device is about that device
                device = mark.pci or f"{mark.subject} {mark.name}"
                causes[mark.host, device].append((file, mark))
    found = [
        _of_marks(evidence, host, marks, symptoms - {host}) for (host, _), marks in causes.items()
    ]
    return sorted(found, key=lambda one: -one.confidence)


def _of_marks(
    evidence: Evidence,
    host: str,
    marks: list[tuple[str, KernelMark]],
    symptoms: set[str],
) -> Diagnosis:
    gravest = max((mark for _, mark in marks), key=lambda mark: mark.confidence)
    is_lost = any(mark.cause == "gpu_lost" for _, mark in marks)
    subject, name = gravest.subject, gravest.pci or gravest.name
    rank = evidence.rank_of(host, pci=name) if subject == "gpu" or is_lost else -1
    gpu = name if subject == "gpu" or is_lost else ""
    link = name if subject == "nic" else ""
    what = f"the GPU {name} of {host} fell off the bus" if is_lost else (
        f"the kernel of {host} reports: {gravest.text.strip()[:120]}"
    )  # fmt: skip
    why = [f"the kernel of {host} reports: {gravest.text.strip()[:120]}"] if is_lost else []
    if symptoms:
        why.append(f"Xid 45 on {', '.join(sorted(symptoms))} is the clean-up after it")
    victims = _victims(evidence, rank, symptoms)
    do = f"replace node {host}; power-cycle it" if is_lost else gravest.remedy
    return Diagnosis(
        "fault", "gpu_lost" if is_lost else gravest.cause, what,
        culprits=(Subject(rank, host, gpu, link),), victims=victims,
        where=f"{subject} {name} of {host}".replace("  ", " "), why=tuple(why), do=do,
        confidence=0.95 if is_lost else gravest.confidence,
        since=min((m.at_s for _, m in marks if m.at_s is not None), default=None),
        evidence=tuple(Observation(file, f"line {mark.line}: {mark.text.strip()[:160]}")
                       for file, mark in marks[:8]),
    )  # fmt: skip


def _victims(evidence: Evidence, culprit: int, symptoms: set[str]) -> tuple[Subject, ...]:
    """Ranks whose errors say that another process has gone, or that run where only Xid 45 is."""
    ranks = {
        line.rank
        for log in evidence.logs.values()
        for line in log.transport.lines
        if line.kind == "closed" and line.rank >= 0
    }
    ranks |= {place.rank for place in evidence.places.values() if place.host in symptoms}
    return tuple(Subject(rank, evidence.node_of(rank)) for rank in sorted(ranks - {culprit}))
