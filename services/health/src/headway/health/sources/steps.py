"""The sums of each step that a rank has finished, from its flight ring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.common.errors import HeadwayError
from headway.common.node.flight import FlightReader
from headway.common.node.flight_record import (
    BROKEN,
    WAITING,
    awaits_device,
    device_times,
)
from headway.common.plan.schedule.actions import COMPUTE, Kind
from headway.common.wire.messages.health import WorkerSignals
from headway.common.wire.messages.summaries import GroupSum, StepSum

_COMPUTE = [int(kind) for kind in COMPUTE]
MAX_STEPS = 256
"""Of one rank at a time: a ring that was not read for long has more, the oldest are left out."""


class StepSource:
    """Reads the rings of a folder, of which a ``FlightSource`` has shown that a step has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[int, int] = {}
        """By rank, the sequence number of the newest step that was summed up."""
        self._counted: dict[int, tuple[int, int, int]] = {}
        """By rank, its process, generation and number of steps when its ring was last read."""

    def read(self, workers: Sequence[WorkerSignals]) -> list[StepSum]:
        """The steps that have ended since the call before.

        What a rank has done before the first call is left out: an earlier agent has seen it.
        """
        found: list[StepSum] = []
        for worker in workers:
            counted = (worker.pid, worker.generation, worker.num_steps)
            is_first = worker.rank not in self._counted
            if counted == self._counted.get(worker.rank):
                continue
            try:
                sums, waits = self._read_one(worker, skips=is_first)
            except (OSError, HeadwayError):
                continue  # removed, or made anew: its next step is seen
            found += sums
            if not waits:
                self._counted[worker.rank] = counted
        self._forget({worker.rank for worker in workers})
        return found

    def _read_one(self, worker: WorkerSignals, *, skips: bool) -> tuple[list[StepSum], bool]:
        """The new steps of one ring, and whether one still lacks the device's times."""
        reader = FlightReader(self._folder / f"flight-{worker.rank}.bin")
        try:
            newest = self._seen.get(worker.rank, -1)
            if newest >= reader.head:  # the ring was made anew
                newest = -1
            records = reader.snapshot(max(0, newest))
        finally:
            reader.close()
        steps = records[
            (records["kind"] == Kind.STEP)
            & (records["end_ns"] > 0)
            & (records["flags"] & BROKEN == 0)
            & (records["sequence"].astype(np.int64) > newest)
        ][-MAX_STEPS:]
        known = steps[: _num_known(records, steps)]
        if len(known):
            self._seen[worker.rank] = int(known["sequence"][-1])
        if skips:
            return [], len(known) < len(steps)
        numbers = {row.line: row.number for row in worker.groups}
        sums = sums_of(worker.rank, records, known, numbers, worker.generation)
        return list(sums), len(known) < len(steps)

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


def sums_of(
    rank: int,
    records: npt.NDArray[Any],
    steps: npt.NDArray[Any],
    numbers: Mapping[int, int],
    generation: int,
) -> Iterator[StepSum]:
    """The sums of ``steps``, the STEP records among ``records``.

    Args:
        numbers: of the group that each line of the rank's table counts, in ``generation``.
    """
    shown = device_times(records)
    is_done = (shown["end_ns"] > 0) & (shown["flags"] & BROKEN == 0)
    shown, entered_ns = shown[is_done], records["start_ns"][is_done]
    for step in steps:
        # entered in the step by the host; the device may do the work a little later
        is_inside = (entered_ns >= step["start_ns"]) & (entered_ns <= step["end_ns"])
        is_inside &= (shown["step"] == step["step"]) & (shown["kind"] != Kind.STEP)
        known = numbers if step["generation"] == generation else {}
        yield _sum(rank, step, shown[is_inside], entered_ns[is_inside], known)


def _sum(
    rank: int,
    step: npt.NDArray[Any],
    inside: npt.NDArray[Any],
    entered_ns: npt.NDArray[np.uint64],
    numbers: Mapping[int, int],
) -> StepSum:
    spent_ns = inside["end_ns"].astype(np.int64) - inside["start_ns"].astype(np.int64)
    is_wait, kind = inside["flags"] & WAITING > 0, inside["kind"]

    def spent_us(*kinds: int) -> int:
        return int(spent_ns[np.isin(kind, kinds)].sum()) // 1000

    start_ns = int(step["start_ns"])
    return StepSum(
        rank=rank,
        generation=int(step["generation"]),
        step=int(step["step"]),
        sequence=int(step["sequence"]),
        start_ns=start_ns,
        duration_us=(int(step["end_ns"]) - start_ns) // 1000,
        own_us=int(spent_ns[np.isin(kind, _COMPUTE) & ~is_wait].sum()) // 1000,
        data_us=spent_us(Kind.DATA),
        snapshot_us=spent_us(Kind.SNAPSHOT_WAIT),
        collection_us=spent_us(Kind.GARBAGE_COLLECTION),
        norm_us=spent_us(Kind.NORM),
        optimizer_us=spent_us(Kind.OPTIMIZER),
        groups=tuple(
            _groups(inside, entered_ns - np.uint64(start_ns), spent_ns * is_wait, numbers)
        ),
    )


def _groups(
    inside: npt.NDArray[Any],
    entered_ns: npt.NDArray[np.uint64],
    waited_ns: npt.NDArray[np.int64],
    numbers: Mapping[int, int],
) -> Iterator[GroupSum]:
    """One row per line of the group table.

    A collective may have two records, of its issue and of the wait for it: the first one shows when
    it was entered.
    """
    for line in np.unique(inside["line"][inside["line"] > 0]):
        of_line = inside["line"] == line
        collectives, first = np.unique(inside["collective"][of_line], return_index=True)
        entered_us = entered_ns[of_line][first] // np.uint64(1000)
        yield GroupSum(
            line=int(line),
            number=numbers.get(int(line), -1),
            num=len(collectives),
            wait_us=int(waited_ns[of_line].sum()) // 1000,
            nbytes=int(_most_bytes(inside[of_line])),
            first_us=int(entered_us.min()),
            last_us=int(entered_us.max()),
        )


def _most_bytes(of_line: npt.NDArray[Any]) -> np.uint64:
    """The bytes of all its collectives, of which one record or both may name them."""
    order = np.lexsort((of_line["nbytes"], of_line["collective"]))
    sorted_rows = of_line[order]
    is_last = np.append(np.diff(sorted_rows["collective"].astype(np.int64)) != 0, True)
    total: np.uint64 = sorted_rows["nbytes"][is_last].sum()
    return total
