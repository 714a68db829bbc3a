"""The steps that a rank has finished since its flight ring was last read, summed up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.common.node.flight import FlightReader
from headway.common.node.flight_record import BROKEN, awaits_device
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.group_table import unpack
from headway.common.wire.messages.health import WorkerSignals
from headway.common.wire.messages.summaries import StepSum
from headway.health.sources.open_files import OpenFiles
from headway.health.sources.step_sums import sums_of

MAX_STEPS = 1024
"""Most steps of one rank at a time: the oldest are left out if a ring was not read for long."""


class StepSource:
    """Reads the rings of a folder, of which a ``FlightSource`` has shown that a step has ended."""

    def __init__(self, folder: Path) -> None:
        self._rings = OpenFiles(folder, "flight-", FlightReader)
        self._seen: dict[int, int] = {}
        """By rank, the sequence number of the newest step that was summed up."""
        self._counted: dict[int, tuple[int, int, int]] = {}
        """By rank, its process, generation and number of steps when its ring was last read."""
        self._num_cut = 0

    def read(self, workers: Sequence[WorkerSignals]) -> list[StepSum]:
        """The steps that have ended since the call before.

        What a rank has done before the first call is left out: an earlier agent has seen it.
        """
        found: list[StepSum] = []
        readers = {reader.rank: reader for reader in self._rings.look()}
        for worker in workers:
            counted = (worker.pid, worker.generation, worker.num_steps)
            is_first = worker.rank not in self._counted
            if counted == self._counted.get(worker.rank):
                continue
            if (reader := readers.get(worker.rank)) is None:
                continue  # removed, or made anew: its next step is seen
            sums, waits = self._read_one(reader, worker, skips=is_first)
            found += sums
            if not waits:
                self._counted[worker.rank] = counted
        self._forget({worker.rank for worker in workers})
        return found

    def _read_one(
        self, reader: FlightReader, worker: WorkerSignals, *, skips: bool
    ) -> tuple[list[StepSum], bool]:
        """The new steps of one ring, and whether one still lacks the device's times."""
        newest = self._seen.get(worker.rank, -1)
        if newest >= reader.head:  # the ring was made anew
            newest = -1
        records = reader.snapshot(max(0, newest))
        steps = records[
            (records["kind"] == Kind.STEP)
            & (records["end_ns"] > 0)
            & (records["flags"] & BROKEN == 0)
            & (records["sequence"].astype(np.int64) > newest)
        ]
        self._num_cut += 0 if skips else max(0, len(steps) - MAX_STEPS)
        steps = steps[-MAX_STEPS:]
        known = steps[: _num_known(records, steps)]
        if len(known):
            self._seen[worker.rank] = int(known["sequence"][-1])
        if skips:
            return [], len(known) < len(steps)
        numbers = {row.line: row.number for row in unpack(worker.packed_groups)}
        sums = sums_of(worker.rank, records, known, numbers, worker.generation)
        return sums, len(known) < len(steps)

    def take_cut(self) -> int:
        """How many steps were left out since the call before."""
        num_cut, self._num_cut = self._num_cut, 0
        return num_cut

    def close(self) -> None:
        self._rings.close()

    def _forget(self, ranks: set[int]) -> None:
        for rank in set(self._counted) - ranks:
            self._counted.pop(rank)
            self._seen.pop(rank, None)


def _num_known(records: npt.NDArray[Any], steps: npt.NDArray[Any]) -> int:
    """How many of the steps have all their times of the device; the others are left for later."""
    awaiting = records[awaits_device(records) & (records["step"] >= 0)]
    awaiting = awaiting[awaiting["generation"] == records["generation"][-1]] if len(steps) else []
    if not len(awaiting):
        return len(steps)
    is_known = steps["step"] < awaiting["step"].min()
    is_known |= steps["generation"] < records["generation"][-1]
    return len(steps) if is_known.all() else int(np.argmin(is_known))
