"""What is wrong now with a run that trains on or hangs: the monitor's open verdicts, in words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headway.console.folder.records import RunRecords

_LONG = frozenset({"hang", "slow"})
"""Kinds of diagnoses that are shown in five lines; of others their sentence is."""


class Findings:
    """``update`` reads only what is new since the call before. One thread only.

    A verdict that is open comes again with each driver, so those of the newest are complete.
    """

    def __init__(self, run: RunRecords) -> None:
        self._run = run
        self._seen = self._started = -1
        self._open: dict[str, dict[str, Any]] = {}
        """By the verdict's id, the fields of its newest event, and what the driver did."""

    def update(self) -> tuple[str, ...]:
        """The open findings, oldest first, such as ``rank 1 computes 2.9x its peers...``."""
        started = self._run.records.newest_event("driver_started")
        if started != self._started:
            self._started = self._seen = started
            self._open.clear()
        verdicts = self._run.records.events(self._seen, name="verdict")
        answers = self._run.records.events(self._seen, name="verdict_answered")
        for event in sorted([*verdicts, *answers], key=lambda one: one.id):
            self._seen, fields = event.id, event.fields
            known = str(fields.get("id"))
            if event.name == "verdict_answered":
                if known in self._open:
                    self._open[known]["taken"] = str(fields.get("taken", ""))
            elif fields.get("is_open") and (fields.get("finding") or is_long(fields)):
                taken = self._open.get(known, {}).get("taken", "")
                self._open[known] = {"taken": taken, **fields}
            else:
                self._open.pop(known, None)
        return tuple(sentence(fields) for fields in self._open.values())


def is_long(verdict: Mapping[str, Any]) -> bool:
    """Whether the run is slow or hangs by what the event of a verdict is about."""
    found = verdict.get("diagnosis")
    return isinstance(found, dict) and found.get("kind") in _LONG


def sentence(verdict: Mapping[str, Any]) -> str:
    """A verdict's event in words: five lines if it slows or holds up the run, else one."""
    if not is_long(verdict):
        return str(verdict["finding"])
    from headway.health.client import brief_text  # takes a moment, and most runs are well

    return brief_text(verdict["diagnosis"], time.time(), str(verdict.get("taken", "")))
