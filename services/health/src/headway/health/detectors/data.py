"""Finds data daemons that keep ranks waiting: no data arrived for a rank within its limit.

A rank that waits for data is a victim like one that waits for a message, but no other rank can help
it. So no rank is killed for it; the daemon of its node is restarted.
"""

from __future__ import annotations

from collections.abc import Iterable

from headway.common.wire.messages.health import Verdict
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import Episodes, Key, Since, fact
from headway.health.detectors.process import describe_action
from headway.health.detectors.rank_view import RankView
from headway.health.policy import advice_for

SERVICE = "dataloader"


def data_key(node: int) -> Key:
    """Identifies the episode of one node's data daemon."""
    return ("data", node)


def stalled(views: Iterable[RankView], config: HealthConfig) -> dict[int, RankView]:
    """By node, the rank that has waited longest for data, of those whose wait is confirmed."""
    found: dict[int, RankView] = {}
    for view in views:
        if not view.waits_for_data or view.beats_over < config.confirm_beats:
            continue
        known = found.get(view.node)
        if known is None or view.silence_s > known.silence_s:
            found[view.node] = view
    return found


def report(episodes: Episodes, victim: RankView, config: HealthConfig) -> list[Verdict]:
    """The verdict on the daemon that ``victim`` waits for."""
    signals, node = victim.signals, victim.node
    name = f"{SERVICE} of node {node}"
    rows = (
        fact("flight", "culprit", name),
        fact("flight", "waiting", f"rank {signals.rank}: {describe_action(signals)}"),
        fact("flight", "nothing_arrived", f"{victim.silence_s:.1f} s"),
        fact("flight", "limit", f"{victim.limit_s(config):.1f} s"),
    )
    return episodes.report(
        data_key(node),
        "data_stall",
        rows,
        advice=advice_for("data_stall", name=name),
        subject="service",
        name=SERVICE,
        node=node,
        pid=signals.data_pid,
        generation=signals.generation,
        since=Since(victim.silence_s, config.beat_interval_s),
    )


def close_delivered(
    episodes: Episodes, node: int, views: Iterable[RankView], config: HealthConfig
) -> list[Verdict]:
    """Close a node's episode once none of its ranks waits for data beyond its limit."""
    if episodes.get(data_key(node)) is None:
        return []
    if any(view.waits_for_data and view.silence_s > view.limit_s(config) for view in views):
        return []
    why = fact("flight", "data_arrived", f"no rank of node {node} waits")
    return episodes.close(data_key(node), why)
