"""What the monitor knows of one rank, and how long it may make no progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.common.wire.messages.health import WorkerSignals
from headway.health.config import HealthConfig
from headway.health.detectors.process import STOPPED

RUNS = frozenset({"R", "S", "D"})
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
    heard_s: float = 0.0
    """When its node last reported it, on the monitor's clock."""
    absence: Literal["", "unreported", "ended"] = ""
    """Why nothing new is known of it: its node reports, but not about it, or it has ended well."""

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

    def may_be_frozen(self, config: HealthConfig) -> bool:
        """Whether it has shown no life for half its limit, so that the next beats will tell.

        Of a rank that has not moved for twice its limit they would have told.
        """
        limit_s = self.limit_s(config)
        is_recent = not self.absence and still_s(self.signals) <= 2 * limit_s
        return is_recent and self.signals.alive_age_s > limit_s / 2

    @property
    def silence_s(self) -> float:
        """How long the rank made no progress.

        While it waits for data, also how long none arrived: the shorter of the two counts.
        """
        signals = self.signals
        if self.waits_for_data and signals.data_age_s >= 0:
            return min(signals.age_s, signals.data_age_s)
        return still_s(signals)

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


def still_s(signals: WorkerSignals) -> float:
    """How long neither the host of a rank has moved, nor its device.

    While the device works the host polls for the result, which takes most of a step.
    """
    device = signals.device
    return signals.age_s if device is None else min(signals.age_s, device.age_s)


def steps_on(view: RankView, node: int, signals: WorkerSignals, config: HealthConfig) -> bool:
    """Whether one more beat shows only that a rank has moved, as most beats do of most ranks."""
    before = view.signals
    return (
        signals.head != before.head
        and signals.pid == before.pid
        and signals.generation == before.generation
        and view.node == node
        and signals.state in RUNS
        and signals.phase == before.phase == "step"
        and view.beats_over == 0
        and signals.age_s <= config.silence_floor_s
        and signals.step_age_s <= config.step_floor_s
    )


def observe(
    view: RankView | None,
    node: int,
    signals: WorkerSignals,
    config: HealthConfig,
    first_limit_s: float = 0.0,
    heard_s: float = 0.0,
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
    view.heard_s, view.absence = heard_s, ""
    is_over = view.silence_s > view.limit_s(config) and signals.state != TRACED
    view.beats_over = view.beats_over + 1 if is_over else 0
    return view
