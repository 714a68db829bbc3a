"""Has the nodes below each switch sum arrays with each other, and names the odd one out.

MegaScale, section 4.3 (arXiv 2402.15627): what goes wrong with all nodes at once, such as a switch
that slows down, does not show between two. There, NCCL does it; here, plain sockets do (``ring``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from headway.health.checks.base import MIB
from headway.health.judgement import Spread, is_worse
from headway.health.pairwise.config import PairwiseConfig
from headway.health.pairwise.fleet import Fleet, Member
from headway.health.pairwise.hosts import Host
from headway.health.pairwise.plan import Node, Pair, usual_rate
from headway.health.pairwise.ring_plan import LEAST_MEMBERS, Odd, odd_ones, rings

SCHEMA = 1
LEAST_SWITCHES = 4
"""Fewest switches that are compared with each other."""


@dataclass(frozen=True)
class SwitchReport:
    """The nodes below one switch, and what was measured between them."""

    switch: str
    """Empty if the hosts file names none."""
    nodes: Sequence[Node]
    """Those that answered."""
    bytes_per_s: float = 0.0
    """What the all-reduce carries on each edge, of the faster ring; 0.0 if none was finished."""
    rings: Sequence[Sequence[Member]] = field(default_factory=list)


@dataclass(frozen=True)
class NeighboursReport:
    """What was found, and all figures that it was concluded from."""

    schema: int
    num_nodes: int
    """In the hosts file."""
    num_answered: int
    is_enough: bool
    """Below some switch enough nodes answered, and a sum was finished or an odd node found."""
    bad: Mapping[Node, Sequence[str]]
    """Node -> what is wrong with it; empty if no node is bad."""
    bad_switches: Mapping[str, str]
    """Switch -> why it is named: all nodes below it are slower than those below the others."""
    notes: Sequence[str]
    """What is not the fault of one node, or could not be judged."""
    switches: Sequence[SwitchReport]


def find_odd_neighbours(
    hosts: Sequence[Host], fleet: Fleet, config: PairwiseConfig
) -> NeighboursReport:
    """Sum twice below each switch, all switches at the same time."""
    below: dict[str, list[Node]] = {}
    for host in hosts:
        below.setdefault(host.switch, []).append(host.name)
    bad: dict[Node, list[str]] = {}
    notes: list[str] = []
    with ThreadPoolExecutor(len(below) or 1) as pool:
        found = list(pool.map(partial(_measure, fleet, bad), below.keys(), below.values()))
    is_enough = False
    for one in found:
        odd = _judge(one, config, bad, notes)
        is_enough = is_enough or bool(one.bytes_per_s or odd.nodes)
    num_answered = sum(len(one.nodes) for one in found)
    slow = _slow_switches(found, config)
    return NeighboursReport(SCHEMA, len(hosts), num_answered, is_enough, bad, slow, notes, found)


def _measure(
    fleet: Fleet, bad: dict[Node, list[str]], switch: str, nodes: Sequence[Node]
) -> SwitchReport:
    """Both rings; who does not answer before the first one takes part in none."""
    measured: list[list[Member]] = []
    answered = list(nodes)
    for turn in range(2):
        opened, troubles = fleet.open_ring(answered)
        for node, trouble in troubles.items():
            bad.setdefault(node, []).append(f"does not answer: {trouble}")
        answered = [node for node in answered if node in opened]
        if len(answered) < LEAST_MEMBERS:
            break
        measured.append(fleet.sum_ring(rings(answered)[turn], opened))
    rates = [_carried(ring) for ring in measured]
    return SwitchReport(switch, answered, max(rates, default=0.0), measured)


def _carried(ring: Sequence[Member]) -> float:
    """Bytes per second of each edge while all carry; 0.0 if a member has not finished."""
    if any(not member.duration_s for member in ring):
        return 0.0
    sent = 2 * (len(ring) - 1) / len(ring) * ring[0].num_bytes
    return sent / max(member.duration_s for member in ring)


def _judge(
    one: SwitchReport, config: PairwiseConfig, bad: dict[Node, list[str]], notes: list[str]
) -> Odd:
    where = f" below {one.switch}" if one.switch else ""
    if len(one.rings) < 2:
        notes.append(f"{len(one.nodes)} nodes{where} answered, {LEAST_MEMBERS} are needed")
        return Odd()
    rates = [_rates(ring) for ring in one.rings]
    odd = odd_ones(rates, config.thresholds)
    edge_of = {member.edge: member for ring in one.rings for member in ring}
    slow = {edge for edge in edge_of if set(edge) & set(odd.nodes)} | set(odd.paths)
    usual = usual_rate(rate for ring in rates for edge, rate in ring.items() if edge not in slow)
    for node in odd.nodes:
        own = [_shown(member) for edge, member in edge_of.items() if node in edge]
        line = f"in a sum{where} {', '.join(own)}; other edges {usual / MIB:.1f} MiB/s"
        bad.setdefault(node, []).append(line)
    for edge in odd.paths:
        shown = _shown(edge_of[edge])
        notes.append(
            f"{shown}{where}, others {usual / MIB:.1f} MiB/s: the path, or what has passed"
        )
    if not one.bytes_per_s:
        broken = sorted({member.trouble for ring in one.rings for member in ring if member.trouble})
        notes.append(f"no sum{where} was finished: {'; '.join(broken)}")
    return odd


def _rates(ring: Sequence[Member]) -> dict[Pair, float]:
    """Bytes per second of each edge that shows something.

    One whose sender has not reached its receiver carries nothing. If the ring broke elsewhere,
    nothing is known of an edge on which no part had begun.
    """
    by_node = {member.edge[1]: member for member in ring}
    found = {}
    for member in ring:
        if not by_node[member.edge[0]].has_reached_next or member.num_damaged:
            found[member.edge] = 0.0
        elif member.bytes_per_s:
            found[member.edge] = member.bytes_per_s
    return found


def _slow_switches(found: Sequence[SwitchReport], config: PairwiseConfig) -> dict[str, str]:
    """The switches that carry less than the others, though no node below them is odd."""
    rates = {one.switch: one.bytes_per_s for one in found if one.bytes_per_s}
    slow = {}
    for switch, rate in rates.items():
        others = [other for name, other in rates.items() if name != switch]
        if len(rates) >= LEAST_SWITCHES and is_worse(rate, Spread.of(others), config.thresholds):
            usual = usual_rate(others) / MIB
            slow[switch] = f"its nodes sum {rate / MIB:.1f} MiB/s, below others {usual:.1f} MiB/s"
    return slow


def _shown(member: Member) -> str:
    a, b = member.edge
    if member.num_damaged:
        return f"{a} -> {b} damaged {member.num_damaged} parts"
    if not member.bytes_per_s:
        return f"{a} -> {b} carried nothing"
    return f"{a} -> {b} {member.bytes_per_s / MIB:.1f} MiB/s"
