"""What every decider is built of: a clock, the words for events and actions, and attempts.

A decider is pure: ``handle(event, now) -> actions``, without clocks, processes or files. What it
wants done is an ``Action``; the outcome of one that can fail comes back as ``Done`` or ``Failed``.
"""

from __future__ import annotations

from headway.common.decide.clock import AwakeClock
from headway.common.decide.words import Action, Done, Event, Failed, Log

__all__ = ["Action", "AwakeClock", "Done", "Event", "Failed", "Log"]
