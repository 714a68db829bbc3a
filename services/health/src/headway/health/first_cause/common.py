"""Joins the same trouble on many nodes into one verdict: a switch is not 32 nodes.

Links that are lost, loss in the network, errors of ports, file systems that fail and nodes that do
not report have one cause if most nodes below a switch, or half of all nodes, have them within a few
seconds. Verdicts of these kinds are held for so long that the others can come; nobody acts on them
within that time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from headway.common.wire.messages.health import Cause, Verdict, VerdictKind
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import Episodes, Key, Since, fact
from headway.health.first_cause.domains import LEAST_FLEET, Scope, find_scope
from headway.health.first_cause.outlet import Outlet
from headway.health.policy import ADVICE, Advice

KEY: Final = "common"
HOLD_S: Final = 2.0
"""How long such a verdict is held: agents read counters once a second and beat twice a second."""
WITHIN_S: Final = 10.0
"""Troubles that begin within this time are the same one."""
GROUPS: Final[Mapping[VerdictKind, tuple[str, Cause]]] = {
    "network_fault": ("network", "network"),
    "link_flapping": ("network", "network"),
    "node_silent": ("silence", "machine_fault"),
    "disk_fault": ("disk", "disk_fault"),
    "clock_error": ("clock", "machine_fault"),
}
"""Kinds of verdicts that are compared with each other, and the cause that they have in common."""
_WORDS: Final = {
    "network": "trouble in the network",
    "silence": "no report",
    "disk": "trouble with a disk or a mount",
    "clock": "trouble with the clock",
}
_OF_DOMAIN: Final = 0.9
"""The certainty of what a domain explains, at most; without one that of ``common_fault``."""


@dataclass(slots=True)
class _Held:
    verdict: Verdict
    since_s: float


class Common:
    """Verdicts that are held, and those that one verdict stands for."""

    def __init__(self, episodes: Episodes, outlet: Outlet, config: HealthConfig) -> None:
        self._episodes, self._outlet = episodes, outlet
        self._domains = config.domains
        self._in_domains = frozenset(node for nodes in config.domains.values() for node in nodes)
        self._held: dict[str, _Held] = {}
        self._recent: dict[str, _Held] = {}
        """By id, the newest ones of all that are compared."""
        self._scopes: dict[Key, tuple[Scope, float]] = {}
        """Open common verdicts, and when their trouble was last seen."""

    def takes(self, verdict: Verdict, num_nodes: int) -> bool:
        """Whether other nodes may have the same trouble, so that it is held."""
        is_compared = verdict.kind in GROUPS and verdict.node >= 0
        return is_compared and (num_nodes >= LEAST_FLEET or verdict.node in self._in_domains)

    def add(self, verdict: Verdict, now_s: float) -> list[Verdict]:
        """Hold a verdict of a kind that is new, or revise the one that is held."""
        known = self._recent.get(verdict.id)
        if known is not None and known.verdict.kind == verdict.kind:
            known.verdict = verdict
            held = verdict.id in self._held
            return [] if held else self._outlet.report(verdict)
        self._held[verdict.id] = self._recent[verdict.id] = _Held(verdict, now_s)
        return []

    def close(self, verdict: Verdict) -> list[Verdict]:
        """One has closed; if it was held, it is reported as it last was, and then closed."""
        self._recent.pop(verdict.id, None)
        held = self._held.pop(verdict.id, None)
        return self._outlet.report(held.verdict) if held is not None else []

    def tick(
        self, num_nodes: int, addresses: Callable[[], Mapping[str, int]], now_s: float
    ) -> list[Verdict]:
        """Verdicts on what many nodes have in common, and those that were held for long enough.

        Args:
            num_nodes: of the run. addresses: gives the nodes by their addresses in the ranks'
            network.
        """
        self._recent = {
            name: one
            for name, one in self._recent.items()
            if name in self._held or now_s - one.since_s <= WITHIN_S
        }
        common: list[Verdict] = []
        for group in dict.fromkeys(group for group, _ in GROUPS.values()):
            common += self._gather(group, num_nodes, addresses, now_s)
        due = [name for name, one in self._held.items() if now_s - one.since_s >= HOLD_S]
        return common + [
            row for name in due for row in self._outlet.report(self._held.pop(name).verdict)
        ]

    def _gather(
        self, group: str, num_nodes: int, addresses: Callable[[], Mapping[str, int]], now_s: float
    ) -> list[Verdict]:
        recent = [
            one
            for one in self._recent.values()
            if GROUPS[one.verdict.kind][0] == group and not self._outlet.is_part(one.verdict)
        ]
        if not recent:
            return []
        found = self._join(group, recent, now_s)
        left = [one for one in recent if not self._outlet.is_part(one.verdict)]
        peers = {
            one.verdict.node: {two.verdict.name for two in left if _names_peer_of(one, two)}
            for one in left
        }
        scope = find_scope({one.verdict.node for one in left}, peers, num_nodes, self._domains)
        if scope is None:
            return found
        key: Key = (KEY, group, f"at-{scope.name}")
        if self._episodes.get(key) is None:
            found += self._open(key, group, scope, left, addresses, now_s)
        self._scopes[key] = (scope, now_s)
        return found + self._join(group, left, now_s)

    def _open(
        self,
        key: Key,
        group: str,
        scope: Scope,
        seen: list[_Held],
        addresses: Callable[[], Mapping[str, int]],
        now_s: float,
    ) -> list[Verdict]:
        cause = next(cause for name, cause in GROUPS.values() if name == group)
        nodes = sorted({one.verdict.node for one in seen})
        listed = ", ".join(map(str, nodes[:16])) + (" ..." if len(nodes) > 16 else "")
        count = f"{len(nodes)} of {len(scope.nodes)}" if scope.name else f"{len(nodes)}"
        what = f"nodes {listed} ({count}) have {_WORDS[group]} within {WITHIN_S:.0f} s"
        if scope.name:
            what += f", all towards {scope.name}" if scope.is_peer else f"; they share {scope.name}"
        surest = max(one.verdict.confidence for one in seen)
        self._outlet.open_head(key, now_s)
        opened = self._episodes.report(
            key,
            "common_fault",
            (fact("beat", "finding", what),),
            advice=_advice(scope, surest),
            cause=cause,
            subject="peer" if scope.is_peer else "domain",
            name=scope.name,
            node=addresses().get(scope.name, -1) if scope.is_peer else -1,
            generation=max(one.verdict.generation for one in seen),
            since=Since(now_s - min(one.since_s for one in seen), WITHIN_S / 2),
        )
        return [row for one in opened for row in self._outlet.report(one)]

    def _join(self, group: str, seen: list[_Held], now_s: float) -> list[Verdict]:
        """Make those that an open common verdict explains parts of it."""
        found: list[Verdict] = []
        for key, (scope, last_s) in list(self._scopes.items()):
            if self._episodes.get(key) is None:
                del self._scopes[key]
                continue
            if key[1] != group or now_s - last_s > WITHIN_S:
                continue
            for one in seen:
                verdict = one.verdict
                is_in = verdict.node in scope.nodes if scope.name and not scope.is_peer else True
                if is_in and not self._outlet.is_part(verdict):
                    self._held.pop(verdict.id, None)
                    found += self._outlet.add(verdict, key, "on_node", _row(verdict), now_s)
                    self._scopes[key] = (scope, now_s)
        return found


def _names_peer_of(one: _Held, two: _Held) -> bool:
    return two.verdict.subject == "peer" and two.verdict.node == one.verdict.node


def _advice(scope: Scope, surest: float) -> Advice:
    plain = ADVICE["common_fault"]
    if not scope.name:
        return replace(plain, confidence=min(plain.confidence, surest))
    certain = min(_OF_DOMAIN, surest)
    if scope.is_peer:
        remedy = f"look at {scope.name}: the others have the same trouble with it, and not at home"
    else:
        remedy = (
            f"check {scope.name}: no node below it is at fault by itself, and replacing a node "
            "does not help"
        )
    return replace(plain, remedy=remedy, confidence=certain)


def _row(verdict: Verdict) -> str:
    facts = {row.name: row.value for row in verdict.evidence}
    said = facts.get("finding") or facts.get("line") or facts.get("silent_for", "")
    return f"node {verdict.node}: {said.strip()[:160]}"
