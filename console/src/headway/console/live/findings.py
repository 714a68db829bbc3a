"""What is wrong now with a run that trains on: the sentences of the monitor's open verdicts."""

from __future__ import annotations

from headway.console.folder.records import RunRecords


class Findings:
    """``update`` reads only what is new since the call before. One thread only.

    A verdict that is open comes again with each driver, so those of the newest are complete.
    """

    def __init__(self, run: RunRecords) -> None:
        self._run = run
        self._seen = self._started = -1
        self._open: dict[str, str] = {}

    def update(self) -> tuple[str, ...]:
        """The open findings, oldest first, such as ``rank 1 computes 2.9x its peers...``."""
        started = self._run.records.newest_event("driver_started")
        if started != self._started:
            self._started = self._seen = started
            self._open.clear()
        for event in self._run.records.events(self._seen, name="verdict"):
            self._seen, fields = event.id, event.fields
            known = str(fields.get("id"))
            if fields.get("is_open") and fields.get("finding"):
                self._open[known] = str(fields["finding"])
            else:
                self._open.pop(known, None)
        return tuple(self._open.values())
