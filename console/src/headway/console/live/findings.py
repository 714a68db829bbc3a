"""What is wrong now with a run that trains on: the sentences of the monitor's open verdicts."""

from __future__ import annotations

import json

from headway.console.folder.records import WHOLE, RunRecords


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
        newest = self._run.query("SELECT MAX(id) FROM events WHERE name = 'driver_started'")
        started = int((newest[0][0] if newest else 0) or 0)
        if started != self._started:
            self._started = self._seen = started
            self._open.clear()
        chosen = f"id > ? AND name = 'verdict' AND {WHOLE}"
        sql = f"SELECT id, fields FROM events WHERE {chosen} ORDER BY id"
        for number, text in self._run.query(sql, (self._seen,)):
            self._seen = int(number)
            fields = json.loads(text)
            known = str(fields.get("id"))  # None of an older version, which had no findings
            if fields.get("is_open") and fields.get("finding"):
                self._open[known] = str(fields["finding"])
            else:
                self._open.pop(known, None)
        return tuple(self._open.values())
