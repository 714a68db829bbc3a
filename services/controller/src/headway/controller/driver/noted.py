"""Which verdicts are in the journal already: they repeat until they are answered."""

from __future__ import annotations

MAX_NOTED = 1024
"""So many are remembered, the newest: the monitor has far fewer open at a time, and one that is
noted twice does no harm."""


class Noted:
    """The newest revision of each verdict."""

    def __init__(self) -> None:
        self._revisions: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._revisions)

    def knows(self, verdict: str) -> bool:
        """Whether any revision of it was noted."""
        return verdict in self._revisions

    def is_new(self, verdict: str, revision: int) -> bool:
        """Whether this revision is to be noted, and remember it then."""
        if revision <= (known := self._revisions.pop(verdict, -1)):
            self._revisions[verdict] = known
            return False
        self._revisions[verdict] = revision
        while len(self._revisions) > MAX_NOTED:
            del self._revisions[next(iter(self._revisions))]
        return True
