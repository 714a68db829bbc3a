"""A run as polars frames: metrics, flight records, recoveries.

Pure functions, with loaders next to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.console.analysis.actions import step_actions
    from headway.console.analysis.bubble import bubbles
    from headway.console.analysis.by_action import action_times, heat_map
    from headway.console.analysis.causes import lost_time
    from headway.console.analysis.episodes import load_journal, recoveries
    from headway.console.analysis.events import idle, load_events, redone_steps, timeline
    from headway.console.analysis.metrics import load_evaluations, load_metrics, step_times
    from headway.console.analysis.overlap import communication
    from headway.console.analysis.slowest import slow_steps
    from headway.console.analysis.time_ledger import ledger

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
    actions="step_actions",
    bubble="bubbles",
    by_action="action_times heat_map",
    causes="lost_time",
    episodes="load_journal recoveries",
    events="idle load_events redone_steps timeline",
    metrics="load_evaluations load_metrics step_times",
    overlap="communication",
    slowest="slow_steps",
    time_ledger="ledger",
)
