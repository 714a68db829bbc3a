"""Which records of a rank's flight ring have not been saved yet, and how many never will be."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError
from headway.common.node.event_files import RankFacts
from headway.common.node.flight import FlightReader
from headway.common.node.flight_record import awaits_device

_MOST_RANKS = 1 << 31


@dataclass(frozen=True, slots=True)
class NewRecords:
    """What one ring has to add to the windows."""

    rank: int
    records: npt.NDArray[Any]
    """dtype ``flight_record.RECORD``, in order."""
    facts: RankFacts
    """Facts about the rank once these records are saved."""


def new_records(path: Path, saved: dict[int, RankFacts], *, final: bool = False) -> NewRecords:
    """Read the ring at ``path``.

    Those of a living rank that are open, or still lack the device's times, are left for a later
    window, unless ``final``.

    Args:
        saved: how far each rank was saved before.

    Raises:
        FileNotFoundError: the ring was removed. CorruptError: it is damaged.
    """
    with contextlib.closing(FlightReader(path)) as reader:
        writer = reader.header.process
        rank = reader.header.rank
        if not 0 <= rank < _MOST_RANKS or path.stem != f"flight-{rank}":
            raise CorruptError(f"{path} says it is of rank {rank}", remedy="remove the file")
        has_ended = not writer.alive()
        before = saved.get(rank)
        records, lost = _beyond(reader, before)
        # A rank's next process registers itself before its first record.
        has_ended = has_ended and reader.header.process == writer
    if not (final or has_ended):
        records = records[: _num_settled(records)]
    if not len(records):
        return NewRecords(rank, records, before or RankFacts(next=0, last_start_ns=0))
    last = records[-1]
    facts = RankFacts(
        next=int(last["sequence"]) + 1, last_start_ns=int(last["start_ns"]), lost=lost
    )
    return NewRecords(rank, records, facts)


def _beyond(reader: FlightReader, saved: RankFacts | None) -> tuple[npt.NDArray[Any], int]:
    """The records after those that were saved, and how many were overwritten in between.

    A ring that was made anew, as after a reboot or in a resumed run, counts from 0 again: the last
    record that was saved is not in it, although its number is.
    """
    if saved is None or saved.next == 0 or reader.head < saved.next:
        records, first = reader.snapshot(), 0
    else:
        records, first = reader.snapshot(saved.next - 1), saved.next
        if len(records) and records["sequence"][0] == first - 1:
            if records["start_ns"][0] == saved.last_start_ns:
                records = records[1:]
            else:
                records, first = reader.snapshot(), 0
    return records, int(records["sequence"][0]) - first if len(records) else 0


def _num_settled(records: npt.NDArray[Any]) -> int:
    """How many at the beginning change no more.

    Open records of an older generation will never be closed: its process is dead. Nor will the
    device's times be added to them.
    """
    if not len(records):
        return 0
    is_changing = (records["end_ns"] == 0) | awaits_device(records)
    is_changing &= records["generation"] == records["generation"][-1]
    changing = np.flatnonzero(is_changing)
    return int(changing[0]) if len(changing) else len(records)
