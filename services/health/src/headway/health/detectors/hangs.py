"""Verdicts on a generation that hangs, and on the rank that blocks it.

They are given only if nothing else explains the hang.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from headway.common.wire.messages.health import Verdict
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import Episodes, Key, Since, fact
from headway.health.detectors.follow_ups import FollowUps
from headway.health.detectors.groups import evidence_of_groups
from headway.health.detectors.process import PROCESS_KINDS, process_key
from headway.health.detectors.rank_view import RankView, still_s
from headway.health.detectors.silence import Hang, evidence_of, find_hang

UNEXPLAINED: Final = "unexplained_hang"
_PROVEN: Final = PROCESS_KINDS | {"node_silent"}
"""Kinds of verdicts that name who is missing: while one is open, no hang is unexplained."""
EXPLAINING: Final = _PROVEN | {"data_stall", "fabric_cut", "fabric_split"}
"""Kinds that may explain why ranks hang."""
_OF_PROGRAM: Final = frozenset({"collective_mismatch", "deadlock", "ended_early"})
"""Causes that no machine is at fault for."""


def hang_key(generation: int) -> Key:
    """Identifies the episode of a generation that hangs without a known culprit."""
    return ("hang", generation)


class Hangs:
    """One hang at a time: the next is reported only if the action on the last one did not help.

    A rank is named only if it is certainly the culprit. While anything is unknown or already wrong,
    a hang without one is not reported either.
    """

    def __init__(self, episodes: Episodes, follow_ups: FollowUps, config: HealthConfig) -> None:
        self._episodes, self._follow_ups, self._config = episodes, follow_ups, config

    def judge(
        self,
        views: Collection[RankView],
        late_nodes: Collection[int],
        generation: int,
        clock_s: float,
    ) -> list[Verdict]:
        """A new or repeated verdict, or none.

        Args:
            views: all ranks, those of older generations excluded. late_nodes: nodes
                whose beats are late.
        """
        if any(not self._is_given_up(node, clock_s) for node in late_nodes):
            return []  # it may be what the others wait for
        seen = [
            view
            for view in views
            if view.signals.generation == generation and view.node not in late_nodes
        ]
        hang = find_hang(seen, self._config)
        if hang is None:
            return []
        keys = {process_key(one.node, one.signals): one for one in hang.culprits}
        others = [
            verdict
            for other, verdict in self._episodes.open_of_generation(generation, EXPLAINING)
            if other not in keys
        ]
        if not all(self._follow_ups.is_in_vain(verdict, clock_s) for verdict in others):
            return []
        is_named = any(verdict.kind in _PROVEN for verdict in others)
        if keys:
            return [
                verdict
                for key, culprit in keys.items()
                for verdict in self._report(key, hang, culprit, seen, clock_s)
            ]
        if is_named or len(seen) < len(views):
            return []
        if any(view.may_be_frozen(self._config) for view in seen):
            return []  # it would be the culprit, whatever the others wait for
        return self._report(hang_key(generation), hang, None, seen, clock_s)

    def close_over(self, views: Collection[RankView], generation: int) -> list[Verdict]:
        """Close unexplained hangs of earlier generations, and one in which ranks move again."""
        closed: list[Verdict] = []
        for key in [key for key in self._episodes.open_keys() if key[0] == "hang"]:
            if key != hang_key(generation):
                closed += self._close(key, "another generation has begun")
            elif find_hang(views, self._config) is None and self._moves(views):
                closed += self._close(key, "ranks move again")
        return closed

    def _moves(self, views: Collection[RankView]) -> bool:
        heard = (view for view in views if not view.absence)
        return any(still_s(view.signals) < view.stall_s(self._config) for view in heard)

    def _close(self, key: Key, why: str) -> list[Verdict]:
        return self._episodes.close(key, fact("flight", "over", why))

    def _is_given_up(self, node: int, clock_s: float) -> bool:
        """Whether a node has been silent for so long that its beats are no longer waited for."""
        known = self._episodes.get(("node", node))
        return known is not None and self._follow_ups.is_in_vain(known, clock_s)

    def _report(
        self,
        key: Key,
        hang: Hang,
        culprit: RankView | None,
        views: Collection[RankView],
        clock_s: float,
    ) -> list[Verdict]:
        known = self._episodes.get(key)
        if known is not None:
            is_hang = known.kind in ("silence", UNEXPLAINED)  # a stopped process is known as such
            is_due = is_hang and self._follow_ups.is_due(known, clock_s)
            return self._follow_ups.repeat(key, clock_s) if is_due else []
        rows = evidence_of(hang, culprit, views, self._config) + evidence_of_groups(views)
        still = still_s(culprit.signals) if culprit is not None else hang.silence_s
        since = Since(still, self._config.beat_interval_s)
        if culprit is None:
            return self._episodes.report(
                key,
                UNEXPLAINED,
                rows,
                cause=hang.cause,
                subject="program" if hang.cause in _OF_PROGRAM else "domain",
                node=-1,
                generation=int(key[1]),
                since=since,
                silence_s=hang.silence_s,
            )
        signals = culprit.signals
        explained = self._close(hang_key(signals.generation), f"rank {signals.rank} explains it")
        return explained + self._episodes.report(
            key,
            "silence",
            rows,
            cause=hang.cause,
            node=culprit.node,
            rank=signals.rank,
            pid=signals.pid,
            generation=signals.generation,
            since=since,
            silence_s=hang.silence_s,
        )
