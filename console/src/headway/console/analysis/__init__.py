"""A run as polars frames: metrics, flight records, recoveries.
Pure functions, with loaders beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.console.analysis.action_times import action_times, heat_map
    from headway.console.analysis.actions import step_actions
    from headway.console.analysis.bubble import bubbles
    from headway.console.analysis.communication import communication
    from headway.console.analysis.episodes import load_journal, recoveries
    from headway.console.analysis.events import idle, load_events, redone_steps, timeline
    from headway.console.analysis.ledger import ledger
    from headway.console.analysis.lost_time import lost_time
    from headway.console.analysis.metrics import load_evaluations, load_metrics, step_times
    from headway.console.analysis.slow_steps import slow_steps

__all__ = [
    "action_times",
    "bubbles",
    "communication",
    "heat_map",
    "idle",
    "ledger",
    "load_evaluations",
    "load_events",
    "load_journal",
    "load_metrics",
    "lost_time",
    "recoveries",
    "redone_steps",
    "slow_steps",
    "step_actions",
    "step_times",
    "timeline",
]

__getattr__, __dir__ = lazy(
    __name__,
    action_times="action_times heat_map",
    actions="step_actions",
    bubble="bubbles",
    communication="communication",
    episodes="load_journal recoveries",
    events="idle load_events redone_steps timeline",
    ledger="ledger",
    lost_time="lost_time",
    metrics="load_evaluations load_metrics step_times",
    slow_steps="slow_steps",
)
