"""The words that all deciders share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


class Event:
    """Base of what happens."""


class Action:
    """Base of what a decider wants done."""


@dataclass(frozen=True)
class Done(Event):
    """An action took effect; until then its effect counts as not there."""

    action: Any
    note: str = ""
    """What remains to be said, for people."""


@dataclass(frozen=True)
class Failed(Event):
    """An action did not take effect."""

    action: Any
    error: str
    """Why, for people."""
    is_final: bool = False
    """Repeating it cannot help, as with a machine that is gone."""
    is_on_order: bool = False
    """What it needs was asked for and is waited for, as a machine in a queued job."""


@dataclass(frozen=True)
class Log(Action):
    """A line of the log, and of the journal where there is one."""

    event: str
    fields: dict[str, Any] = field(default_factory=dict)
    level: Literal["info", "warning", "error"] = "info"
