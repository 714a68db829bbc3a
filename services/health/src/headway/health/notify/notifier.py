"""Sends the verdicts of a run to all addresses of ``[health] notify``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway.common.wire.messages.health import Verdict
from headway.health.journal import newest_revisions
from headway.health.notify.news import SentFile
from headway.health.notify.webhook import Webhook


class Notifier:
    """One thread per address, so that a slow one holds up no other."""

    def __init__(
        self, urls: Sequence[str], least: float, folder: Path, earlier: Sequence[Verdict] = ()
    ) -> None:
        """Send what an earlier monitor has left.

        Args:
            least: confidence from which on a verdict is sent. folder: where each address has a
            file of what it has received. earlier: every verdict of the run so far.
        """
        self._hooks = [Webhook(url, least, SentFile(folder, url)) for url in dict.fromkeys(urls)]
        newest = newest_revisions([*earlier])
        for hook in self._hooks:
            hook.catch_up(newest)

    @property
    def num_dropped(self) -> int:
        """Verdicts that were not delivered in time, or that an address has refused."""
        return sum(hook.num_dropped for hook in self._hooks)

    def report(self, verdict: Verdict) -> None:
        """Send a new revision, if it is news; never blocks."""
        for hook in self._hooks:
            hook.put(verdict)

    def close(self) -> None:
        """Send what waits, for a short time."""
        for hook in self._hooks:
            hook.close()
