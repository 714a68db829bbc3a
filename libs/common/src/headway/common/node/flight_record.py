"""The form of a flight record: 64 bytes on one action of a rank.

A record with the flag ``ON_DEVICE`` brackets the launch of work that a device does later. The
writer adds the device's times when it knows them; ``device_times`` applies them.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

US = 1_000
"""ns in the unit of a device's times."""
RECORD = np.dtype(
    [
        ("kind", "u1"),  # plan.schedule.actions.Kind
        ("chunk", "u1"),
        ("flags", "<u2"),  # WAITING, BROKEN, ON_DEVICE, ABORTED
        ("micro_batch", "<i4"),  # or the bucket of a collective; -1 = none
        ("step", "<i4"),  # -1 = none
        ("generation", "<u4"),
        ("peer", "<i2"),  # -1 = none
        ("line", "u1"),  # of the group table: which group the collective is of; 0 = none
        ("op", "u1"),  # plan.collectives.Op
        ("collective", "<u4"),  # its number in the group, modulo 2**32; the first one is 1
        ("sequence", "<u8"),
        ("start_ns", "<u8"),
        ("end_ns", "<u8"),  # 0 = still open
        ("nbytes", "<u8"),
        ("device", "<u8"),  # the device's times, see ``device_times``; 0 = none, or not known yet
    ]
)
_FIELDS = struct.Struct("<BBHiiIhBBIQQQQQ")
"""The layout for single records, of which numpy takes ten times as long to read each."""
assert _FIELDS.size == RECORD.itemsize
WAITING = 1
"""Flag of a record that spans a wait, not the issue, of a message or collective."""
BROKEN = 2
"""Flag of a record that an exception ended: its work was not done."""
ON_DEVICE = 4
"""Flag of a record whose times are those of a launch until those of the device are known."""
ABORTED = 8
"""Flag of a broken record whose generation was fenced: its rank is not to blame."""


def device_times(records: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``records`` with the device's start and end, to 1 us, where they are known.

    The upper half of ``device`` is how much later than the launch the device began, in whole us of
    the clock; the lower half its duration plus one.
    """
    if not records["device"].any():
        return records
    found = records.copy()
    found["start_ns"], found["end_ns"] = device_spans(records)
    return found


class Record(NamedTuple):
    """One record in plain values; the fields are those of ``RECORD``, in its order."""

    kind: int
    chunk: int
    flags: int
    micro_batch: int
    step: int
    generation: int
    peer: int
    line: int
    op: int
    collective: int
    sequence: int
    start_ns: int
    end_ns: int
    nbytes: int
    device: int


def plain(record: bytes) -> Record:
    """One record of 64 bytes in plain values."""
    return Record._make(_FIELDS.unpack(record))


def device_spans(records: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """When each of ``records`` began and ended, in ns, as ``device_times`` has it."""
    start_ns, end_ns, device = records["start_ns"], records["end_ns"], records["device"]
    known = device > 0
    if not known.any():
        return start_ns, end_ns
    device_start_ns = (start_ns // US + (device >> np.uint64(32))) * np.uint64(US)
    spent_ns = ((device & np.uint64(0xFFFFFFFF)) - np.uint64(1)) * np.uint64(US)
    return (
        np.where(known, device_start_ns, start_ns),
        np.where(known, device_start_ns + spent_ns, end_ns),
    )


def awaits_device(records: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which records may still be corrected by a process that runs."""
    launched = records["flags"] & (ON_DEVICE | BROKEN) == ON_DEVICE
    waits: npt.NDArray[np.bool_] = launched & (records["device"] == 0)
    return waits
