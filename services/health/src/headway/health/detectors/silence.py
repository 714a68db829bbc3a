"""Detects that a run hangs, and which rank blocks it.

In synchronous training one hung rank soon stops all others, which wait for it. So silence is a
property of a whole generation, and a rank that still makes progress proves that the run is
slow, not hung. Among the silent ranks, those that wait in communication are victims; the one
that computes, or is between actions, is the culprit. A rank whose process does not run at all, as
in a frozen control group, is the culprit whatever it waits for. While a rank waits for data, no
rank is blamed: see ``data``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.common.plan.schedule.actions import RECEIVES, SENDS, Kind
from headway.common.wire.messages.health import Evidence, WorkerSignals
from headway.health.config import HealthConfig
from headway.health.detectors.process import STOPPED, describe_action

WAITING = frozenset(
    kind.name for kind in (*SENDS, *RECEIVES, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.NORM)
)  # fmt: skip
"""Actions in which a rank waits for others."""
TRACED = "t"
"""State of a process held by a debugger."""


@dataclass(slots=True)
class RankView:
    """The monitor's state of one rank's process in one generation."""

    node: int
    signals: WorkerSignals
    beats_over: int = 0
    """Consecutive beats in which the rank was silent beyond its limit."""

    @property
    def waits_for_data(self) -> bool:
        """Whether it waits for its node's data daemon: it could run, and its ring
        is empty or unknown."""
        signals = self.signals
        is_held = signals.state in STOPPED or signals.state == TRACED
        return signals.open_kind == "DATA" and signals.data_wait in ("", "daemon") and not is_held

    @property
    def waits_for_others(self) -> bool:
        """Whether it waits for other ranks, or for another reader that keeps its data ring full."""
        signals = self.signals
        return signals.open_kind in WAITING or (
            signals.open_kind == "DATA" and signals.data_wait == "readers"
        )

    def is_frozen(self, config: HealthConfig) -> bool:
        """Whether its process as a whole does not run, although it was not stopped by a signal."""
        return self.signals.alive_age_s > self.limit_s(config)

    @property
    def silence_s(self) -> float:
        """How long the rank made no progress; while it waits for data, also
        how long none arrived."""
        signals = self.signals
        if self.waits_for_data and signals.data_age_s >= 0:
            return min(signals.age_s, signals.data_age_s)
        return signals.age_s

    def is_suspended(self, config: HealthConfig) -> bool:
        """Whether the rank may take long: it joins, restores, evaluates or
        makes its first steps."""
        return self.signals.phase != "step" or self.signals.num_steps < config.first_steps

    def limit_s(self, config: HealthConfig) -> float:
        """The limit of silence for this rank at present."""
        if self.is_suspended(config):
            return config.data_start_s if self.waits_for_data else config.suspended_limit_s
        floor_s = config.data_floor_s if self.waits_for_data else config.silence_floor_s
        return max(floor_s, config.silence_factor * self.signals.median_step_s)

    def stall_s(self, config: HealthConfig) -> float:
        """Silence after which it counts as not moving: half its limit, since the
        last rank stops later."""
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
    is_over = view.silence_s > view.limit_s(config) and signals.state != TRACED
    view.beats_over = view.beats_over + 1 if is_over else 0
    return view


def find_culprit(views: Sequence[RankView], config: HealthConfig) -> tuple[RankView, bool] | None:
    """The rank that blocks a generation and whether that is certain; None if nothing is wrong.

    Also None while every rank is between actions (a paused run), while one makes progress, while
    one is joining, restoring, evaluating or in its first steps within that limit, while one waits
    for data, and while a debugger holds one.
    """
    if not any(view.beats_over >= config.confirm_beats for view in views):
        return None
    if all(not view.signals.open_kind for view in views):
        return None
    if any(view.waits_for_data or view.signals.state == TRACED for view in views):
        return None
    if any(view.signals.age_s < view.stall_s(config) for view in views):
        return None
    active = [view for view in views if view.is_frozen(config)]
    active = active or [view for view in views if not view.waits_for_others]
    culprit = max(active or views, key=lambda view: view.signals.age_s)
    if culprit.beats_over < config.confirm_beats:
        return None  # such as one that a debugger has just released
    return culprit, bool(active)


def evidence_of(
    culprit: RankView, views: Iterable[RankView], config: HealthConfig
) -> tuple[Evidence, ...]:
    """The culprit's position, limit and process state, and how many others wait."""
    num_waiting = sum(view.waits_for_others for view in views)
    return (
        Evidence(source="flight", name="last_action", value=describe_action(culprit.signals)),
        Evidence(source="flight", name="limit", value=f"{culprit.limit_s(config):.1f} s"),
        Evidence(source="proc", name="state", value=culprit.signals.state),
        Evidence(source="flight", name="ranks_waiting", value=str(num_waiting)),
    )
