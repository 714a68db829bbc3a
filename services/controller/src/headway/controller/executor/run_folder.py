"""Whether the run's folder is there, by the looks at it; a run whose folder was removed ends."""

from __future__ import annotations

from typing import Literal

from headway.common.decide import Action, Log
from headway.controller.executor.node_events import EndRun, FolderSeen


class RunFolder:
    """``see`` takes in each look.

    Args:
        gone_s: how long the folder must have been gone before the run is ended.
    """

    def __init__(self, gone_s: float) -> None:
        self._gone_s = gone_s
        self._gone_since: float | None = None
        self.seen = FolderSeen("unknown", detail="it has not been looked at")
        """The newest look."""
        self.is_given_up = False
        """The run was ended, since its folder was removed."""

    @property
    def is_readable(self) -> bool:
        """Whether the newest look could read the lease."""
        return self.seen.lease is not None

    def see(self, look: FolderSeen, now: float) -> list[Action]:
        """Take in a look; returns what to log, and the end of the run where that is due."""
        actions: list[Action] = []
        if (look.state, look.detail) != (self.seen.state, self.seen.detail):
            fields = {"state": look.state, "detail": look.detail}
            level: Literal["info", "warning"] = "warning" if look.lease is None else "info"
            actions.append(Log("the run's folder", fields, level))
        self.seen = look
        if look.state != "gone":
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now
        elif now - self._gone_since > self._gone_s:
            self.is_given_up = True
            actions.append(Log("the run's folder was removed; ending the run", level="error"))
            actions.append(EndRun("failed"))
        return actions

    def trouble(self) -> list[str]:
        """A sentence when the folder or its lease cannot be read."""
        if self.seen.state != "there":
            return [f"the run's folder cannot be seen: {self.seen.detail}"]
        if self.seen.lease is None:
            return [f"the driver's lease cannot be read: {self.seen.detail}"]
        return []
