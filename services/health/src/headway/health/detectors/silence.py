"""Has the run come to a stand, and which rank holds it up?

In synchronous training one hung rank soon stops all others, which wait for it. So silence is a property of a
whole generation, and a rank that still moves proves that the run is slow, not hung. Among the silent ranks
those that wait in communication are victims; the one that computes, or is between actions, is the culprit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.common.plan.schedule.actions import RECEIVES, SENDS, Kind
from headway.common.wire.messages.health import Evidence, WorkerSignals
from headway.health.config import HealthConfig
from headway.health.detectors.process import describe_action

WAITING = frozenset(
    kind.name for kind in (*SENDS, *RECEIVES, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.NORM)
)  # fmt: skip
"""Actions in which a rank waits for others."""


@dataclass(slots=True)
class RankView:
    """What the monitor remembers of one rank's process in one generation."""

    node: int
    signals: WorkerSignals
    beats_over: int = 0
    """Beats in a row in which the rank was silent beyond its limit."""

    def is_suspended(self, config: HealthConfig) -> bool:
        """Whether the rank may rightly take long: it joins, restores, evaluates or makes its first steps."""
        return self.signals.phase != "step" or self.signals.num_steps < config.first_steps

    def limit_s(self, config: HealthConfig) -> float:
        """Silence that counts for this rank now."""
        if self.is_suspended(config):
            return config.suspended_limit_s
        return max(config.silence_floor_s, config.silence_factor * self.signals.median_step_s)

    def stall_s(self, config: HealthConfig) -> float:
        """Silence from which on it cannot be said to move: half its limit, since the last one to stop stops
        later."""
        return self.limit_s(config) / (1 if self.is_suspended(config) else 2)


def observe(
    view: RankView | None, node: int, signals: WorkerSignals, config: HealthConfig
) -> RankView:
    """The view after one more beat; a new process or generation starts afresh."""
    is_same = (
        view is not None
        and view.node == node
        and view.signals.pid == signals.pid
        and view.signals.generation == signals.generation
    )
    if view is None or not is_same:
        view = RankView(node, signals)
    view.signals = signals
    view.beats_over = view.beats_over + 1 if signals.age_s > view.limit_s(config) else 0
    return view


def find_culprit(views: Sequence[RankView], config: HealthConfig) -> tuple[RankView, bool] | None:
    """The rank that holds a generation up and whether it is certain, or None while nothing is wrong.

    None too while every rank is between actions (a paused run), while one still moves, and while one is
    joining, restoring, evaluating or in its first steps within that limit.
    """
    if not any(view.beats_over >= config.confirm_beats for view in views):
        return None
    if all(not view.signals.open_kind for view in views):
        return None
    if any(view.signals.age_s < view.stall_s(config) for view in views):
        return None
    active = [view for view in views if view.signals.open_kind not in WAITING]
    suspects = active or views
    return max(suspects, key=lambda view: view.signals.age_s), bool(active)


def evidence_of(
    culprit: RankView, views: Iterable[RankView], config: HealthConfig
) -> tuple[Evidence, ...]:
    """Where the culprit stands, its limit, its process state, and how many others wait."""
    num_waiting = sum(view.signals.open_kind in WAITING for view in views)
    return (
        Evidence(source="flight", name="last_action", value=describe_action(culprit.signals)),
        Evidence(source="flight", name="limit", value=f"{culprit.limit_s(config):.1f} s"),
        Evidence(source="proc", name="state", value=culprit.signals.state),
        Evidence(source="flight", name="ranks_waiting", value=str(num_waiting)),
    )
