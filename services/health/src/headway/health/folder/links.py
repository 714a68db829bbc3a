"""Faults of links that a folder shows: ports that went down, or whose errors grew."""

from __future__ import annotations

from collections import Counter, defaultdict

from headway.health.config import HealthConfig
from headway.health.diagnosis.diagnosis import Diagnosis, Observation, Subject
from headway.health.dumps.counters import LINK_DOWN
from headway.health.folder.evidence import Evidence

FLAP_WINDOW_S = 300.0
"""Two losses of a link within it cost the node (ByteRobust, section 4); one is noted."""
LEAST_ERRORS = HealthConfig.nic_errors
"""Fewer errors of a port than those are no fault; single ones come with each lost link."""

Port = tuple[str, str, int]
"""Host, device, number."""


def judge_links(evidence: Evidence) -> list[Diagnosis]:
    """Ports that went down, else the one whose errors grew, else a host that peers cannot reach."""
    downs: Counter[Port] = Counter()
    errors: dict[Port, Counter[str]] = defaultdict(Counter)
    for growth in evidence.growths:
        port = (growth.host, growth.device, growth.port)
        if growth.counter == LINK_DOWN and growth.grown > 0:
            downs[port] += growth.grown
        elif growth.is_fault and growth.grown >= LEAST_ERRORS:
            errors[port][growth.counter] += growth.grown
    blamed = _blamed(evidence)
    if downs:
        return [_flapping(evidence, port, downs, blamed) for port, _ in downs.most_common()]
    if len(errors) == 1:  # errors of many ports come from what they share
        [(port, counts)] = errors.items()
        return [_erring(evidence, port, counts, blamed)]
    return _named_by_peers(evidence, blamed)


def _flapping(
    evidence: Evidence, port: Port, downs: Counter[Port], blamed: dict[str, set[str]]
) -> Diagnosis:
    host, device, number = port
    count, name = downs[port], f"{device} port {number}"
    nowhere_else = " there and nowhere else" if len(downs) == 1 else ""
    return Diagnosis(
        "fault",
        "link_flap",
        f"the link of {name} on {host} flaps" if count > 1 else f"the link of {name} on {host} "
        "went down once",
        culprits=(Subject(node=host, link=name),),
        victims=tuple(Subject(node=one) for one in sorted(blamed.get(host, {}))),
        where=f"{name} of {host}",
        why=(
            f"link_downed of {name} rose by {count}{nowhere_else}",
            *_address_words(evidence, host, blamed),
        ),
        do=_what_to_do(host, device, count, _down_times(evidence, host)),
        confidence=0.95 if len(downs) == 1 else 0.8,
        evidence=_growth_rows(evidence, host),
    )  # fmt: skip


def _what_to_do(host: str, device: str, count: int, times: list[float]) -> str:
    """Two losses within the window cost the node; without times, two between the readings do."""
    most = max((sum(at <= one < at + FLAP_WINDOW_S for one in times) for at in times), default=0)
    check = f"check transceiver and cable of {device}, and the switch port at the other end"
    minutes = f"{FLAP_WINDOW_S / 60:.0f} minutes"
    if most >= 2:
        return (
            f"replace node {host}, of which a link went down {most} times within {minutes}; {check}"
        )
    if len(times) >= count > 1:
        return f"note it: it went down {count} times, never twice within {minutes}; {check}"
    if count > 1:
        return (
            f"replace node {host}: it went down {count} times between the two readings, and no log "
            f"says when; {check}"
        )
    return f"note it: a single loss costs no node; {check} when it repeats"


def _down_times(evidence: Evidence, host: str) -> list[float]:
    """When links of a host went down, by its kernel, which names them otherwise than counters."""
    return sorted(
        mark.at_s
        for kernel in evidence.kernels.values()
        for mark in kernel.news()
        if mark.host == host and mark.rule == "link_down" and mark.at_s is not None
    )


def _erring(
    evidence: Evidence, port: Port, counts: Counter[str], blamed: dict[str, set[str]]
) -> Diagnosis:
    host, device, number = port
    name = f"{device} port {number}"
    grown = ", ".join(f"{counter} by {count}" for counter, count in counts.most_common(3))
    is_blamed = host in blamed
    return Diagnosis(
        "fault",
        "link_fault",
        f"{name} on {host} counts errors of its link",
        culprits=(Subject(node=host, link=name),),
        victims=tuple(Subject(node=one) for one in sorted(blamed.get(host, {}))),
        where=f"{name} of {host}",
        why=(
            f"there rose {grown}, and nowhere else",
            "the link did not go down",
            *_address_words(evidence, host, blamed),
        ),
        do=f"check transceiver and cable of {device} on {host}, and the port of the switch that it "
        "leads to; compare it in pairs with `headway health pairwise`",
        confidence=0.85 if is_blamed else 0.6,
        alternatives=(("the other end of the link", 0.1 if is_blamed else 0.3),),
        evidence=_growth_rows(evidence, host),
    )


def _growth_rows(evidence: Evidence, host: str) -> tuple[Observation, ...]:
    return tuple(
        Observation(f"counters of {host}", f"{one.device} port {one.port} {one.counter}: "
                                           f"{one.before} before, {one.after} after")
        for one in evidence.growths
        if one.host == host and one.is_fault
    )[:8]  # fmt: skip


def _blamed(evidence: Evidence) -> dict[str, set[str]]:
    """Host (its address where no line names the host) -> the hosts whose errors name it."""
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
    """Address -> host, from tables of ranks and the ends of connections."""
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
