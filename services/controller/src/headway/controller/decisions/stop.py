"""A stop command ends the run in any case: by the ranks, or by force when they make no progress."""

from __future__ import annotations

from collections.abc import Callable

from headway.controller.decisions.core import Core
from headway.controller.decisions.events import Action


class StopWatch:
    """Measures how long a stop command has made no progress."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._moved_at = 0.0
        self._best = (-1, -1, -1)

    def look(self, core: Core, why: Callable[[], str]) -> list[Action]:
        """Called at each tick; ends a run that does not stop.

        Args:
            why: returns why the run does not step now.
        """
        if not any(command.operation == "stop" for command in core.commands):
            return []
        now = core.clock.now
        progress = (core.step, core.applied, core.members.current["finished"])
        if self._since is None:
            self._since = self._moved_at = now
        # only new bests: a run that recovers repeatedly steps too
        if any(new > best for new, best in zip(progress, self._best, strict=True)):
            self._moved_at = now
            self._best = tuple(map(max, progress, self._best))  # type: ignore[assignment]
        if now - self._moved_at < core.limits.stop_timeout_s:
            return []
        because = why() or "its ranks step no more"
        return core.finish("stopped", f"ended by force after {now - self._since:.0f} s: {because}")
