"""Finds pairs of nodes between which the ranks' network carries nothing.

All ranks wait then, and none of them is at fault. What proves it is that a node repeats segments to
another one whose agent beats, but whose kernel acknowledges nothing (``connections``), and answers
no other question either (``probes``): a full backlog of a listening socket loses segments too.
Of such a pair the node is named that belongs to more of them, or that reaches fewer others. Where
the pairs have no node in common, or all lead out of one domain, the network has come apart, and no
replacement helps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from headway.common.output import counted
from headway.common.wire.messages.health import (
    AgentBeat,
    Evidence,
    SilentPeer,
    Verdict,
    VerdictKind,
)
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import Episodes, Key, Since, fact
from headway.health.policy import advice_for

KIND: Final = "fabric_cut"
SPLIT: Final = "fabric_split"
"""No single node belongs to all pairs."""
GROWTH: Final = 2
"""Repetitions that must fail while the beats of both nodes arrive: after a cut of everything
has healed, a connection is silent until its next repetition, which succeeds."""
UNASKED: Final = 2
"""So many times longer a pair must be silent while one of its nodes has asked nobody, as where its
agent is late."""
UNKNOWN: Final = 0.75
"""The silent share of the peers of such a node: it counts as reaching fewer than one that reaches
half of them, and more than one that reaches none."""
KEEP_S: Final = 600.0
"""So long a pair that was found counts against its nodes at most."""
MAX_NAMED: Final = 4
"""Pairs in the sentence; all are in the evidence."""

Pair = tuple[int, int]
"""The node that repeats, and the one that does not acknowledge."""


class Fabric:
    """Follows the silent peers in the newest beats of the nodes."""

    def __init__(self, episodes: Episodes, config: HealthConfig, own_node: int) -> None:
        """``own_node`` is the monitor's and the driver's: named only if no other one can be."""
        self._episodes, self._config, self._own_node = episodes, config, own_node
        self._generation = -1
        self._num_steps: dict[int, int] | None = None
        """By rank, finished in this generation."""
        self._first: dict[Pair, tuple[int, float]] = {}
        """Repetitions when a pair was first seen, and when."""
        self._last_s: dict[frozenset[int], float] = {}
        """When a pair was last confirmed. It counts until the next step, since ranks wait for one
        peer at a time: the node of which several were cut off one after the other is to blame."""

    def judge(
        self, beats: Mapping[int, AgentBeat], generation: int, clock_s: float
    ) -> list[Verdict]:
        """A new verdict, or the end of earlier ones.

        Args:
            beats: of the nodes whose beats arrive and that carry ranks of ``generation``.
        """
        verdicts = self._begin(generation)
        self._forget_older(beats, generation)
        confirmed = self._follow(beats, clock_s)
        verdicts += self._close(confirmed)
        if confirmed:
            node = self._suspect(confirmed, beats, clock_s)
            domain = self._domain_of(node, confirmed, beats)
            is_cut = all(node in pair for pair in confirmed) and not domain
            kind: VerdictKind = KIND if is_cut else SPLIT
            verdicts += self._episodes.report(
                fabric_key(node),
                kind,
                _evidence(confirmed, beats),
                advice=advice_for(kind, pairs=_listed(confirmed)),
                subject="domain" if domain else "pair",
                name=domain or _listed(confirmed),
                node=-1 if domain else node,
                generation=generation,
                since=Since(_longest_s(confirmed, beats), self._config.beat_interval_s),
            )
        return verdicts

    def _begin(self, generation: int) -> list[Verdict]:
        """Forget the cuts of an older generation, for the driver acts on none of them.

        One that is still there is found again while the ranks join, and named with the generation
        that it keeps from joining.
        """
        known, self._generation = self._generation, generation
        if known in (-1, generation):
            return []
        self._first, self._num_steps = {}, None
        why = fact("kernel", "over", "another generation has begun")
        keys = [key for key in self._episodes.open_keys() if key[0] == KIND]
        return [verdict for key in keys for verdict in self._episodes.close(key, why)]

    def _forget_older(self, beats: Mapping[int, AgentBeat], generation: int) -> None:
        """A step that ranks have finished took every pair: earlier cuts have healed."""
        num_steps = {
            worker.rank: worker.num_steps
            for beat in beats.values()
            for worker in beat.workers
            if worker.generation == generation
        }
        known = self._num_steps
        if known is None:  # the first look at this generation
            has_stepped = any(num_steps.values())
        else:  # a rank whose beats were late has not stepped for that
            has_stepped = any(num > known.get(rank, num) for rank, num in num_steps.items())
        if has_stepped:
            self._last_s.clear()
        self._num_steps = (known or {}) | num_steps

    def _follow(self, beats: Mapping[int, AgentBeat], clock_s: float) -> set[Pair]:
        nodes = _nodes_by_address(beats)
        seen: dict[Pair, tuple[int, float]] = {}
        confirmed: set[Pair] = set()
        for node, beat in beats.items():
            for peer in beat.silent_peers:
                other = nodes.get(peer.address)
                if other is None or other == node or peer.address in beat.reached:
                    continue  # of a node that is lost, an old connection may remain
                first, since_s = self._first.get((node, other), (peer.num_repeats, clock_s))
                if peer.num_repeats < first:  # acknowledged meanwhile, and silent again
                    first, since_s = peer.num_repeats, clock_s
                seen[node, other] = (first, since_s)
                silent_s = clock_s - since_s
                # which of the two is to blame shows once both have asked others
                wait = 1 if beat.num_asked and beats[other].num_asked else UNASKED
                is_over = silent_s >= wait * self._config.fabric_silence_s
                if is_over and peer.num_repeats - first >= GROWTH:
                    confirmed.add((node, other))
        self._first = seen
        return confirmed

    def _suspect(
        self, pairs: Collection[Pair], beats: Mapping[int, AgentBeat], clock_s: float
    ) -> int:
        self._last_s |= {frozenset(pair): clock_s for pair in pairs}
        self._last_s = {
            pair: last_s for pair, last_s in self._last_s.items() if clock_s - last_s <= KEEP_S
        }
        now = Counter(node for pair in set(map(frozenset, pairs)) for node in pair)
        lately = Counter(node for pair in self._last_s for node in pair)

        def suspicion(node: int) -> tuple[int, int, float, bool, bool, int]:
            is_named = self._episodes.get(fabric_key(node)) is not None
            beat, is_own = beats[node], node == self._own_node
            silent = 1 - len(beat.reached) / beat.num_asked if beat.num_asked else UNKNOWN
            return now[node], lately[node], silent, is_named, not is_own, node

        return max({node for pair in pairs for node in pair}, key=suspicion)

    def _domain_of(
        self, suspect: int, pairs: Collection[Pair], beats: Mapping[int, AgentBeat]
    ) -> str:
        """The domain that has lost the others as a whole; empty if it is the suspect alone.

        All silent pairs lead out of it then, of several of its nodes, or of one that reaches others
        of the domain.
        """
        nodes = _nodes_by_address(beats)
        for name, members in self._config.domains.items():
            if suspect not in members or any((a in members) == (b in members) for a, b in pairs):
                continue
            inside = {node for pair in pairs for node in pair if node in members}
            reached = {nodes.get(address) for address in beats[suspect].reached}
            if len(inside) > 1 or not reached.isdisjoint(set(members) - {suspect}):
                return name
        return ""

    def _close(self, confirmed: Collection[Pair]) -> list[Verdict]:
        concerned = {node for pair in confirmed for node in pair}
        why = fact("kernel", "acknowledged", "no connection waits any more")
        return [
            verdict
            for key in self._episodes.open_keys()
            if key[0] == KIND and key[1] not in concerned
            for verdict in self._episodes.close(key, why)
        ]


def fabric_key(node: int) -> Key:
    """Identifies the episode of a node that others do not reach."""
    return (KIND, node)


def _nodes_by_address(beats: Mapping[int, AgentBeat]) -> dict[str, int]:
    """Those whose address is theirs alone: what several share names none of them."""
    shared = Counter(beat.fabric_address for beat in beats.values())
    return {
        beat.fabric_address: node
        for node, beat in beats.items()
        if beat.fabric_address and shared[beat.fabric_address] == 1
    }


def _listed(pairs: Collection[Pair]) -> str:
    both = sorted({(min(pair), max(pair)) for pair in pairs})
    shown = ", ".join(f"{a} and {b}" for a, b in both[:MAX_NAMED])
    more = f" and {counted(len(both) - MAX_NAMED, 'more pair')}" if len(both) > MAX_NAMED else ""
    return shown + more


def _longest_s(pairs: Collection[Pair], beats: Mapping[int, AgentBeat]) -> float:
    return max(_silent_peer(pair, beats).age_s for pair in pairs)


def _silent_peer(pair: Pair, beats: Mapping[int, AgentBeat]) -> SilentPeer:
    node, other = pair
    address = beats[other].fabric_address
    return next(one for one in beats[node].silent_peers if one.address == address)


def _evidence(pairs: Collection[Pair], beats: Mapping[int, AgentBeat]) -> tuple[Evidence, ...]:
    rows = []
    for node, other in sorted(pairs):
        peer, reached = _silent_peer((node, other), beats), len(beats[node].reached)
        value = (
            f"node {node} ({beats[node].fabric_address}) to node {other} ({peer.address}): nothing "
            f"acknowledged for {peer.age_s:.1f} s, sent again {peer.num_repeats} times; "
            f"{reached} of {counted(beats[node].num_asked, 'peer')} of node {node} answer, of node "
            f"{other} {len(beats[other].reached)} of {beats[other].num_asked}"
        )
        rows.append(fact("kernel", "pair", value))
    return tuple(rows)
