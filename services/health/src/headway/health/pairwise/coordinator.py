"""Finds the bad nodes among those of a hosts file, in two rounds of measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headway.health.checks.base import MIB
from headway.health.pairwise.config import PairwiseConfig
from headway.health.pairwise.fleet import CpuResult, Fleet, LinkResult
from headway.health.pairwise.hosts import Host
from headway.health.pairwise.plan import (
    LEAST_NODES,
    Conclusion,
    Node,
    Pair,
    Round,
    conclude,
    first_round,
    second_round,
    slow_nodes,
    slow_pairs,
    still_slow,
    usual_rate,
)

SCHEMA = 1


@dataclass(frozen=True)
class PairwiseReport:
    """What was found, and all figures that it was concluded from."""

    schema: int
    num_nodes: int
    """In the hosts file."""
    num_answered: int
    is_enough: bool
    """Enough nodes answered, and some pair could be measured: there is something to compare."""
    bad: Mapping[Node, Sequence[str]]
    """Node -> what is wrong with it; empty if no node is bad."""
    notes: Sequence[str]
    """What is not the fault of one node, or could not be judged."""
    cpus: Sequence[Mapping[Node, CpuResult]] = field(default_factory=list)
    """Results of the nodes' CPUs by round."""
    links: Sequence[Sequence[LinkResult]] = field(default_factory=list)
    """Results of the links by round; in the second, the first node of a pair is the suspect."""


def find_bad_nodes(hosts: Sequence[Host], fleet: Fleet, config: PairwiseConfig) -> PairwiseReport:
    """Measure all nodes, then the suspects once more."""
    findings = _Findings()
    cpus = fleet.measure_cpus(host.name for host in hosts)
    answered = [node for node in cpus if not cpus[node].trouble]
    for node in cpus:
        if cpus[node].trouble:
            findings.add(node, f"does not answer: {cpus[node].trouble}")
        elif not cpus[node].is_exact:
            findings.add(node, "computes wrongly: a matrix product is not exact")
    if len(answered) < LEAST_NODES:
        findings.is_enough = False
        findings.notes.append(
            f"{len(answered)} of {len(hosts)} nodes answered, {LEAST_NODES} are needed to compare"
        )
        return findings.report(len(hosts), len(answered), [cpus], [])
    both_cpus = [cpus, _again(cpus, answered, fleet, config, findings)]
    first, second = _links(answered, fleet, config, findings)
    links = [list(first.values()), list(second.values())]
    return findings.report(len(hosts), len(answered), both_cpus, links)


class _Findings:
    """Collects what is wrong with each node."""

    def __init__(self) -> None:
        self.bad: dict[Node, list[str]] = {}
        self.notes: list[str] = []
        self.is_enough = True

    def add(self, node: Node, reason: str) -> None:
        self.bad.setdefault(node, []).append(reason)

    def report(
        self,
        num_nodes: int,
        num_answered: int,
        cpus: Sequence[Mapping[Node, CpuResult]],
        links: Sequence[Sequence[LinkResult]],
    ) -> PairwiseReport:
        return PairwiseReport(
            SCHEMA, num_nodes, num_answered, self.is_enough, self.bad, self.notes, cpus, links
        )


def _again(
    cpus: Mapping[Node, CpuResult],
    answered: Sequence[Node],
    fleet: Fleet,
    config: PairwiseConfig,
    findings: _Findings,
) -> dict[Node, CpuResult]:
    """Measure the arithmetic of the slow nodes again, and name those that stay slow."""
    values = {node: cpus[node].products_per_s for node in answered}
    again = fleet.measure_cpus(slow_nodes(values, config.thresholds))
    rates = {node: result.products_per_s for node, result in again.items()}
    usual = usual_rate(value for node, value in values.items() if node not in again)
    for node in still_slow(rates, values, config.thresholds):
        findings.add(
            node,
            f"computes {values[node]:.3g} and {rates[node]:.3g} products/s, others {usual:.3g}",
        )
    return again


def _links(
    answered: Sequence[Node], fleet: Fleet, config: PairwiseConfig, findings: _Findings
) -> tuple[dict[Pair, LinkResult], dict[Pair, LinkResult]]:
    """Measure both rounds, and name the nodes whose link is slow in both."""
    planned = first_round(answered)
    first = fleet.measure_links(planned.pairs)
    first_rates = {pair: result.rate for pair, result in first.items()}
    again = second_round(planned, first_rates, config.thresholds)
    second = fleet.measure_links(again.pairs)
    second_rates = {pair: result.rate for pair, result in second.items()}
    found = conclude(first_rates, second_rates, again, config.thresholds)
    slow = slow_pairs(first_rates, config.thresholds)
    usual = usual_rate(rate for pair, rate in first_rates.items() if pair not in slow)
    for node in found.bad:
        own = [one for one in (*first.values(), *second.values()) if node in one.pair]
        listed = " and ".join(f"{_shown(one)} with {_other(one, node)}" for one in own)
        findings.add(node, f"its link carries {listed}, others {usual / MIB:.1f} MiB/s")
    if len(slow) == len(first):
        findings.is_enough = False
        findings.notes.append("no pair could be measured: see `trouble` of each link (--json)")
    findings.notes += _notes(found, planned, again)
    return first, second


def _notes(found: Conclusion, planned: Round, again: Round) -> list[str]:
    """What is not the fault of one node."""
    notes = [
        f"{a} and {b} were paired with each other and are both slow"
        for a, b in planned.pairs
        if {a, b} <= set(found.bad)
    ]
    notes += [
        f"{a} and {b} were slow with each other and with nobody else: the path between them, or "
        "something that has passed"
        for a, b in found.slow_paths
    ]
    if again.left_out:
        listed = ", ".join(again.left_out)
        notes.append(f"not judged, as too few pairs were fast: {listed}")
    return notes


def _shown(one: LinkResult) -> str:
    if one.trouble:
        return f"nothing ({one.trouble})"
    if one.num_damaged:
        return f"{one.num_damaged} damaged blocks"
    return f"{one.rate / MIB:.1f} MiB/s"


def _other(one: LinkResult, node: Node) -> Node:
    return one.pair[1] if one.pair[0] == node else one.pair[0]
