"""A run as polars frames: metrics, flight records, recoveries.
Pure functions, with loaders beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.console.analysis.episodes import load_journal, recoveries
    from headway.console.analysis.events import heat_map, idle, load_events, redone_steps, timeline
    from headway.console.analysis.metrics import load_evaluations, load_metrics, step_times

__all__ = [
    "heat_map",
    "idle",
    "load_evaluations",
    "load_events",
    "load_journal",
    "load_metrics",
    "recoveries",
    "redone_steps",
    "step_times",
    "timeline",
]

__getattr__, __dir__ = lazy(
    __name__,
    episodes="load_journal recoveries",
    events="heat_map idle load_events redone_steps timeline",
    metrics="load_evaluations load_metrics step_times",
)
