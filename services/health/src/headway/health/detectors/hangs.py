"""Verdicts on the rank that blocks a generation, if nothing else explains why it hangs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from headway.common.wire.messages.health import Verdict
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import Episodes, Key
from headway.health.detectors.follow_ups import FollowUps
from headway.health.detectors.process import PROCESS_KINDS, process_key
from headway.health.detectors.silence import RankView, evidence_of, find_culprit
from headway.health.policy import GUESS_STEP, PROCESS_ADVICE, WAITING_CONFIDENCE

EXPLAINING: Final = PROCESS_KINDS | {"node_silent", "data_stall", "fabric_cut"}
"""Kinds of verdicts that may explain why ranks hang."""
_CERTAIN: Final = PROCESS_ADVICE["silence"].confidence


class Hangs:
    """One silence at a time: the next is reported only if the action on the last one did not help.

    While anything is unknown or already wrong, only a certain culprit counts, not a guess
    among waiting ranks.
    """

    def __init__(self, episodes: Episodes, follow_ups: FollowUps, config: HealthConfig) -> None:
        self._episodes, self._follow_ups, self._config = episodes, follow_ups, config

    def judge(
        self,
        views: Sequence[RankView],
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
        found = find_culprit(seen, self._config)
        if found is None:
            return []
        culprit, is_certain = found
        if not is_certain:
            culprit = self._guess_before(seen) or culprit
        key = process_key(culprit.node, culprit.signals)
        others = [
            verdict
            for other, verdict in self._episodes.open_of_generation(generation, EXPLAINING)
            if other != key
        ]
        if not all(self._follow_ups.is_in_vain(verdict, clock_s) for verdict in others):
            return []
        if not is_certain and (others or len(seen) < len(views)):
            return []
        return self._name(key, culprit, seen, is_certain=is_certain, clock_s=clock_s)

    def _is_given_up(self, node: int, clock_s: float) -> bool:
        """Whether a node has been silent for so long that its beats are no longer waited for."""
        known = self._episodes.get(("node", node))
        return known is not None and self._follow_ups.is_in_vain(known, clock_s)

    def _guess_before(self, views: Sequence[RankView]) -> RankView | None:
        """The rank that is already suspected, since the longest waiter may
        change with every beat."""
        for view in views:
            known = self._episodes.get(process_key(view.node, view.signals))
            if known is not None and known.kind == "silence":
                return view
        return None

    def _name(
        self,
        key: Key,
        culprit: RankView,
        views: Sequence[RankView],
        *,
        is_certain: bool,
        clock_s: float,
    ) -> list[Verdict]:
        known = self._episodes.get(key)
        if known is None:
            signals = culprit.signals
            return self._episodes.report(
                key,
                "silence",
                PROCESS_ADVICE["silence"],
                evidence_of(culprit, views, self._config),
                node=culprit.node,
                rank=signals.rank,
                pid=signals.pid,
                generation=signals.generation,
                confidence=None if is_certain else WAITING_CONFIDENCE,
            )
        if known.kind != "silence":
            return []  # a stopped process is known as such
        if known.confidence < _CERTAIN:
            if is_certain:
                return self._follow_ups.repeat(key, clock_s, _CERTAIN)
            if self._follow_ups.age_s(known, clock_s) >= culprit.limit_s(self._config):
                raised = round(known.confidence + GUESS_STEP, 2)
                return self._follow_ups.repeat(key, clock_s, raised)
        elif self._follow_ups.is_due(known, clock_s):
            return self._follow_ups.repeat(key, clock_s)
        return []
