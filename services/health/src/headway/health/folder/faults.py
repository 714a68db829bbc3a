"""Faults of machines that a folder shows: the first cause, with what follows from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from headway.health.diagnosis.diagnosis import Cause, Diagnosis, Observation, Subject
from headway.health.dumps.counters import LINK_DOWN
from headway.health.dumps.kernel import KernelMark
from headway.health.folder.evidence import Evidence

FLAP_WINDOW_S = 300.0
"""Two flaps of a link within it cost the node (ByteRobust, section 4); one is noted."""
_LOST = frozenset({"xid_79", "gpu_lost"})
_CAUSES: dict[str, Cause] = {
    "gpu_fault": "gpu_fault", "network_fault": "link_fault", "memory_error": "memory_fault",
    "out_of_memory": "out_of_memory", "disk_fault": "disk_fault", "pcie_error": "machine_fault",
    "kernel_stall": "machine_fault", "disk_full": "disk_fault",
}  # fmt: skip
_NOTED = frozenset({"info", "notice"})


def judge_faults(evidence: Evidence) -> list[Diagnosis]:
    """Faults of links, GPUs and machines since the job was started; the likeliest cause first."""
    return [*_links(evidence), *_of_kernels(evidence), *_lost_gpus(evidence)]


# ---- links ------------------------------------------------------------------------------------
def _links(evidence: Evidence) -> list[Diagnosis]:
    """Ports that went down, if one of them did so most; the others' errors name its address."""
    downs: Counter[tuple[str, str, int]] = Counter()
    for growth in evidence.growths:
        if growth.counter == LINK_DOWN and growth.grown > 0:
            downs[growth.host, growth.device, growth.port] += growth.grown
    blamed = _blamed(evidence)
    if not downs:
        return _named_by_peers(evidence, blamed)
    found = []
    for (host, device, port), count in downs.most_common():
        flaps = _flaps(evidence, host)
        is_bad = count >= 2 or flaps >= 2
        victims = tuple(Subject(node=one) for one in sorted(blamed.get(host, {})))
        why = [
            f"link_downed of {device} port {port} rose by {count} there and nowhere else"
            if len(downs) == 1
            else f"link_downed of {device} port {port} rose by {count}"
        ]
        why += _address_words(evidence, host, blamed)
        do = (
            f"replace node {host} (it flapped repeatedly within 5 minutes); check transceiver and "
            f"cable of {device}"
            if is_bad
            else f"note it: one flap of {device} costs no node; check its cable when it repeats"
        )
        found.append(
            Diagnosis(
                "fault",
                "link_flap",
                f"the link of {device} port {port} on {host} flaps",
                culprits=(Subject(node=host, link=f"{device} port {port}"),),
                victims=victims,
                where=f"{device} port {port} of {host}",
                why=tuple(why),
                do=do,
                confidence=0.95 if len(downs) == 1 else 0.8,
                evidence=_growth_rows(evidence, host),
            )
        )
    return found


def _growth_rows(evidence: Evidence, host: str) -> tuple[Observation, ...]:
    return tuple(
        Observation(f"counters of {host}", f"{one.device} port {one.port} {one.counter}: "
                                           f"{one.before} before, {one.after} after")
        for one in evidence.growths
        if one.host == host and one.is_fault
    )[:8]  # fmt: skip


def _blamed(evidence: Evidence) -> dict[str, set[str]]:
    """Host (its address where no line tells the host) -> the hosts whose errors name it."""
    owners = _owners(evidence)
    found: dict[str, set[str]] = defaultdict(set)
    for log in evidence.logs.values():
        for line in log.transport.lines:
            if line.peer and line.host:
                peer = owners.get(line.peer, line.peer)
                if peer != line.host:
                    found[peer].add(line.host)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _owners(evidence: Evidence) -> dict[str, str]:
    """Address -> host, as tables of ranks and the ends of connections tell."""
    owners = {one.address: one.host for one in evidence.places.values() if one.address}
    for log in evidence.logs.values():
        for line in log.transport.lines:
            if line.own_address and line.host:
                owners[line.own_address] = line.host
    return owners


def _address_words(evidence: Evidence, host: str, blamed: dict[str, set[str]]) -> list[str]:
    if host not in blamed:
        return []
    addresses = [one for one, owner in _owners(evidence).items() if owner == host]
    at = f" ({', '.join(addresses)})" if addresses else ""
    return [f"the errors of {', '.join(sorted(blamed[host]))} all name {host}{at}"]


def _flaps(evidence: Evidence, host: str) -> int:
    """The most times that a link of a host went down within the window."""
    times = sorted(
        mark.at_s
        for mark in _news(evidence)
        if mark.host == host and mark.subject == "nic" and mark.at_s is not None
    )
    return max((sum(at <= one < at + FLAP_WINDOW_S for one in times) for at in times), default=0)


def _named_by_peers(evidence: Evidence, blamed: dict[str, set[str]]) -> list[Diagnosis]:
    """Without counters: a host that several others cannot reach, and which nobody else blames."""
    ranked = list(blamed.items())
    if not ranked or len(ranked[0][1]) < 2:
        return []
    host, others = ranked[0]
    if len(ranked) > 1 and len(ranked[1][1]) == len(others):
        return []
    return [
        Diagnosis(
            "fault",
            "network",
            f"{len(others)} nodes lost their connections to {host}",
            culprits=(Subject(node=host),),
            victims=tuple(Subject(node=one) for one in sorted(others)),
            why=(*_address_words(evidence, host, blamed), "no counters were collected"),
            do=f"look at the links and processes of {host}: its counters tell whether a link went "
            "down, its logs whether the process there ended first",
            confidence=0.7,
            alternatives=(("a process ended there first", 0.25),),
        )
    ]


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


# ---- kernels ------------------------------------------------------------------------------------
def _news(evidence: Evidence) -> Iterable[KernelMark]:
    for kernel in evidence.kernels.values():
        yield from kernel.news()


def _of_kernels(evidence: Evidence) -> list[Diagnosis]:
    """One for each thing that a kernel reports, the gravest and earliest first."""
    causes: dict[tuple[str, str, str], list[tuple[str, KernelMark]]] = defaultdict(list)
    symptoms: set[str] = set()
    for file, kernel in evidence.kernels.items():
        for mark in kernel.news():
            if mark.is_symptom:
                symptoms.add(mark.host)
            elif mark.severity not in _NOTED and not (mark.subject == "nic" and evidence.growths):
                subject = mark.pci or mark.name
                causes[mark.host, mark.subject, subject].append((file, mark))
    found = [
        _of_marks(evidence, host, subject, name, marks, symptoms - {host})
        for (host, subject, name), marks in causes.items()
    ]
    return sorted(found, key=lambda one: -one.confidence)


def _of_marks(
    evidence: Evidence,
    host: str,
    subject: str,
    name: str,
    marks: list[tuple[str, KernelMark]],
    symptoms: set[str],
) -> Diagnosis:
    gravest = max((mark for _, mark in marks), key=lambda mark: mark.confidence)
    is_lost = any(_is_lost(mark) for _, mark in marks)
    cause: Cause = "gpu_lost" if is_lost else _CAUSES.get(gravest.kind, "machine_fault")
    rank = evidence.rank_of(host, pci=name) if subject == "gpu" or is_lost else -1
    gpu = name if subject == "gpu" or is_lost else ""
    link = name if subject == "nic" else ""
    what = f"the GPU {name} of {host} fell off the bus" if is_lost else (
        f"the kernel of {host} reports: {gravest.text.strip()[:120]}"
    )  # fmt: skip
    why = []
    if symptoms:
        why.append(f"Xid 45 on {', '.join(sorted(symptoms))} is the clean-up after it")
    victims = _victims(evidence, rank, symptoms)
    do = f"replace node {host}; power-cycle it" if is_lost else gravest.remedy
    return Diagnosis(
        "fault", cause, what, culprits=(Subject(rank, host, gpu, link),), victims=victims,
        where=f"{subject} {name} of {host}".replace("  ", " "), why=tuple(why), do=do,
        confidence=0.95 if is_lost else gravest.confidence,
        since=min((m.at_s for _, m in marks if m.at_s is not None), default=None),
        evidence=tuple(Observation(file, f"line {mark.line}: {mark.text.strip()[:160]}")
                       for file, mark in marks[:8]),
    )  # fmt: skip


def _is_lost(mark: KernelMark) -> bool:
    return mark.xid == 79 or "fallen off the bus" in mark.text or mark.rule in _LOST


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
