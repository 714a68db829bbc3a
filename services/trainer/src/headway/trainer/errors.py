"""Errors that decide how a run goes on after a rank has left its generation.

InputError (common)
└── RefusedError         no restart mends it: the run ends with this text
CorruptError (common)
└── BadCheckpointError   a durable checkpoint cannot be read: an older one may be good
"""

from __future__ import annotations

from headway.common.errors import CorruptError, InputError


class RefusedError(InputError):
    """The run was given other data, or another model's state, than it began with."""


class BadCheckpointError(CorruptError):
    """The durable checkpoint of the restore point is damaged, incomplete or gone."""
