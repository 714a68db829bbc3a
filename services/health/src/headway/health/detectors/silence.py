"""Detects that a run hangs, and which rank blocks it.

In synchronous training one hung rank soon stops all others, which wait for it. So silence is a
property of a whole generation, and a rank that still makes progress proves that the run is
slow, not hung. Each rank shows whether its main thread waits for others: these are victims. The
culprit is the only one that does not wait, or one whose process does not run at all, as in a frozen
control group, whatever it waits for. In every other case the hang is unexplained, and no rank is
blamed: all wait, as for a lost message; several do not; or the host of a device only launches work,
so that where it stands proves nothing. While a rank waits for data, no rank is blamed either: see
``data``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from headway.common.wire.messages.health import Evidence, WorkerSignals
from headway.health.config import HealthConfig
from headway.health.detectors.episodes import fact
from headway.health.detectors.process import STOPPED, describe_action

TRACED = "t"
"""State of a process held by a debugger."""


@dataclass(slots=True)
class RankView:
    """The monitor's state of one rank's process in one generation."""

    node: int
    signals: WorkerSignals
    beats_over: int = 0
    """Consecutive beats in which the rank was silent beyond its limit."""
    first_limit_s: float = 0.0
    """Limit in the first steps of its generation, 0 for the suspended one."""

    @property
    def waits_for_data(self) -> bool:
        """Whether it waits for its node's data daemon.

        It does if it could run, and its ring is empty or unknown.
        """
        signals = self.signals
        is_held = signals.state in STOPPED or signals.state == TRACED
        return signals.open_kind == "DATA" and signals.data_wait in ("", "daemon") and not is_held

    @property
    def waits_for_others(self) -> bool:
        """Whether it waits for other ranks, or for another reader that keeps its data ring full."""
        signals = self.signals
        is_behind_reader = signals.open_kind == "DATA" and signals.data_wait == "readers"
        return signals.waits == "others" or is_behind_reader

    def is_frozen(self, config: HealthConfig) -> bool:
        """Whether its process as a whole does not run, although it was not stopped by a signal."""
        return self.signals.alive_age_s > self.limit_s(config)

    @property
    def silence_s(self) -> float:
        """How long the rank made no progress.

        While it waits for data, also how long none arrived: the shorter of the two counts.
        """
        signals = self.signals
        if self.waits_for_data and signals.data_age_s >= 0:
            return min(signals.age_s, signals.data_age_s)
        return signals.age_s

    def is_suspended(self, config: HealthConfig) -> bool:
        """Whether the rank may take long.

        It may while it joins, restores or evaluates, and in its first steps.
        """
        return self.signals.phase != "step" or self.signals.num_steps < config.first_steps

    def limit_s(self, config: HealthConfig) -> float:
        """The limit of silence for this rank at present."""
        if self.is_suspended(config) and self.waits_for_data:
            return config.data_start_s
        if self.is_suspended(config):
            is_known = self.first_limit_s > 0 and self.signals.phase == "step"
            return self.first_limit_s if is_known else config.suspended_limit_s
        floor_s = config.data_floor_s if self.waits_for_data else config.silence_floor_s
        return max(floor_s, config.silence_factor * self.signals.median_step_s)

    def stall_s(self, config: HealthConfig) -> float:
        """Silence after which it counts as not moving.

        It is half its limit, since the last rank stops later.
        """
        return self.limit_s(config) / (1 if self.is_suspended(config) else 2)

    def is_stuck(self, config: HealthConfig) -> bool:
        """Whether its step takes so long that even a rank that moves in it may never end it."""
        usual_s = self.signals.median_step_s or config.suspended_limit_s
        limit_s = max(config.step_floor_s, config.step_factor * usual_s)
        return self.signals.step_age_s > limit_s and not self.waits_for_data


def observe(
    view: RankView | None,
    node: int,
    signals: WorkerSignals,
    config: HealthConfig,
    first_limit_s: float = 0.0,
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
    view.signals, view.first_limit_s = signals, first_limit_s
    is_over = view.silence_s > view.limit_s(config) and signals.state != TRACED
    view.beats_over = view.beats_over + 1 if is_over else 0
    return view


@dataclass(frozen=True, slots=True)
class Hang:
    """A generation in which no rank makes progress, or none completes its step."""

    culprit: RankView | None
    """The rank that blocks the others for certain; None if none can be named."""
    silence_s: float
    """For how long nothing has moved; 0 of a culprit that cannot recover by itself."""
    what: str
    """What was observed, for people."""


def find_hang(views: Collection[RankView], config: HealthConfig) -> Hang | None:
    """Whether the ranks of a generation hang, and because of which one.

    None while every rank is between actions (a paused run), while one makes progress, while
    one is joining, restoring, evaluating or in its first steps within that limit, while one waits
    for data, and while a debugger holds one.
    """
    if any(view.waits_for_data or view.signals.state == TRACED for view in views):
        return None
    if all(not view.signals.open_kind for view in views):
        return None
    if any(view.signals.age_s < view.stall_s(config) for view in views):
        return _find_livelock(views, config)
    if not any(view.beats_over >= config.confirm_beats for view in views):
        return None
    silence_s = min(view.signals.age_s for view in views)
    frozen = [view for view in views if view.is_frozen(config)]
    if frozen:
        culprit = max(frozen, key=lambda view: view.signals.age_s)
        return _confirmed(Hang(culprit, 0.0, "its process does not run"), config)
    active = [view for view in views if not view.waits_for_others]
    if len(active) == 1 and active[0].signals.waits != "device":
        return _confirmed(Hang(active[0], silence_s, "it alone waits for nobody"), config)
    return Hang(None, silence_s, f"no rank moved for {silence_s:.1f} s")


def _confirmed(hang: Hang, config: HealthConfig) -> Hang | None:
    """Not a culprit that a debugger, for example, has just released."""
    assert hang.culprit is not None
    return hang if hang.culprit.beats_over >= config.confirm_beats else None


def _find_livelock(views: Collection[RankView], config: HealthConfig) -> Hang | None:
    stuck = [view for view in views if view.is_stuck(config)]
    if not stuck:
        return None
    longest_s = max(view.signals.step_age_s for view in stuck)
    return Hang(None, longest_s, f"ranks move, but their step has lasted for {longest_s:.0f} s")


def evidence_of(
    hang: Hang, views: Collection[RankView], config: HealthConfig
) -> tuple[Evidence, ...]:
    """What shows why a generation hangs.

    It is the culprit's position, limit and process state, and how many others wait; or how many
    ranks are where.
    """
    culprit = hang.culprit
    num_waiting = sum(view.waits_for_others for view in views)
    rows = (
        fact("flight", "why", hang.what),
        fact("flight", "ranks_waiting", str(num_waiting)),
    )
    if culprit is None:
        places = Counter(view.signals.open_kind or "between actions" for view in views)
        text = ", ".join(f"{count} in {place}" for place, count in places.most_common())
        return (*rows, fact("flight", "ranks_by_action", text))
    return (
        fact("flight", "last_action", describe_action(culprit.signals)),
        fact("flight", "limit", f"{culprit.limit_s(config):.1f} s"),
        fact("proc", "state", culprit.signals.state),
        *rows,
    )
