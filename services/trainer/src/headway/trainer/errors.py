"""Errors that decide how a run goes on after a rank has left its generation.

InputError (common)
└── RefusedError         no restart mends it: the run ends with this text
CorruptError (common)
├── BadCheckpointError   a durable checkpoint cannot be read: an older one may be good
└── BadSnapshotError     a snapshot in memory cannot be trusted: the next good copy is used
"""

from __future__ import annotations

from pathlib import Path

from headway.common.errors import CorruptError, InputError


class RefusedError(InputError):
    """The run was given other data, or another model's state, than it began with."""


class BadCheckpointError(CorruptError):
    """The durable checkpoint of the restore point is damaged, incomplete or gone."""


class BadSnapshotError(CorruptError):
    """The rank's arena is no source for ``step``: damaged, of another layout, or without that step."""

    def __init__(self, step: int, path: Path, reason: str) -> None:
        super().__init__(
            f"the snapshot of step {step} in {path} cannot be used: {reason}",
            remedy="an older snapshot or checkpoint is used",
        )
        self.step, self.path, self.reason = step, path, reason
