"""Detects nodes whose agents have not reported for too long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.common.wire.messages.health import AgentBeat, Verdict
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import Episodes, Key, Since, fact


@dataclass(slots=True)
class NodeView:
    """The newest beat of one node and its arrival on the monitor's own clock."""

    beat: AgentBeat
    heard_s: float


def node_key(node: int) -> Key:
    """Identifies the episode of a node that is silent."""
    return ("node", node)


def silent_nodes(
    episodes: Episodes, nodes: Mapping[int, NodeView], config: HealthConfig, clock_s: float
) -> list[Verdict]:
    """Verdicts on nodes whose newest beat is older than the limit."""
    verdicts: list[Verdict] = []
    for node, view in nodes.items():
        unheard_s = clock_s - view.heard_s
        if unheard_s <= config.node_silence_s:
            continue
        workers = view.beat.workers
        ranks = ", ".join(str(worker.rank) for worker in workers) or "none"
        rows = (
            fact("beat", "silent_for", f"more than {config.node_silence_s:.1f} s"),
            fact("beat", "last_sequence", str(view.beat.sequence)),
            fact("beat", "ranks", ranks),
        )
        generation = max((worker.generation for worker in workers), default=-1)
        verdicts += episodes.report(
            node_key(node),
            "node_silent",
            rows,
            node=node,
            generation=generation,
            since=Since(unheard_s, config.beat_interval_s),
        )
    return verdicts


def close_heard(episodes: Episodes, beat: AgentBeat) -> list[Verdict]:
    """Close a node's episode, as it has reported again."""
    key = node_key(beat.node)
    if episodes.get(key) is None:
        return []
    return episodes.close(key, fact("beat", "heard_again", f"sequence {beat.sequence}"))
