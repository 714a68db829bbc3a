"""Sums up the finished steps of a rank: its own time, its waits, and each group's collectives.

All steps of a reading are summed up together: numpy's cost is that of its calls, and a rank may do
many steps between two readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.common.node.flight_record import BROKEN, WAITING, device_spans
from headway.common.plan.schedule.actions import COMPUTE, Kind
from headway.common.wire.messages.summaries import GroupSum, StepSum

Ints = npt.NDArray[np.int64]
_COLUMNS = (
    COMPUTE, (Kind.DATA,), (Kind.SNAPSHOT_WAIT,), (Kind.GARBAGE_COLLECTION,), (Kind.NORM,),
    (Kind.OPTIMIZER,),
)  # fmt: skip
"""The kinds whose times are summed up, in the order of ``StepSum``."""
_NO_COLUMN = len(_COLUMNS)
_COLUMN_OF = np.full(256, _NO_COLUMN, np.int64)
for _column, _kinds in enumerate(_COLUMNS):
    _COLUMN_OF[[int(kind) for kind in _kinds]] = _column
_OF_REPLICAS = (int(Kind.ALL_GATHER), int(Kind.REDUCE_SCATTER))
_LINES = 1 << 8
"""More than a group table has lines."""


def sums_of(
    rank: int,
    records: npt.NDArray[Any],
    steps: npt.NDArray[Any],
    numbers: Mapping[int, int],
    generation: int,
) -> list[StepSum]:
    """The sums of ``steps``, the STEP records among ``records``, in their order.

    Args:
        numbers: of the group that each line of the rank's table counts, in ``generation``.
    """
    if not len(steps):
        return []
    inside, spent_ns, owner = _inside(records, steps)
    is_wait = records["flags"][inside] & WAITING > 0
    kinds, nested = records["kind"][inside], _nested(records, inside, spent_ns)
    times_us = _times_ns(kinds, is_wait, spent_ns - nested, owner, len(steps)) // 1000
    passes = np.bincount(owner[(_COLUMN_OF[kinds] == 0) & ~is_wait], minlength=len(steps)).tolist()
    entered_ns = records["start_ns"][inside].astype(np.int64)
    entered_ns -= steps["start_ns"].astype(np.int64)[owner]
    groups = _groups(records, inside, entered_ns, spent_ns * is_wait, owner)
    found = []
    for index, (step, row) in enumerate(zip(steps.tolist(), times_us.tolist(), strict=True)):
        fields = dict(zip(steps.dtype.names or (), step, strict=True))
        known = numbers if fields["generation"] == generation else {}
        found.append(
            StepSum(
                rank=rank,
                generation=fields["generation"],
                step=fields["step"],
                sequence=fields["sequence"],
                start_ns=fields["start_ns"],
                duration_us=(fields["end_ns"] - fields["start_ns"]) // 1000,
                own_us=row[0],
                data_us=row[1],
                snapshot_us=row[2],
                collection_us=row[3],
                norm_us=row[4],
                optimizer_us=row[5],
                groups=tuple(
                    GroupSum(line, known.get(line, -1), *rest)
                    for line, *rest in groups.get(index, ())
                ),
                num_passes=passes[index],
            )
        )
    return found


def _inside(records: npt.NDArray[Any], steps: npt.NDArray[Any]) -> tuple[Ints, Ints, Ints]:
    """Which finished records lie within the steps, how long each took, and each one's step.

    The host entered them in the step; the device may do the work a little later. Only columns are
    taken: numpy copies a record field by field.
    """
    entered_ns = records["start_ns"].astype(np.int64)
    owner = np.searchsorted(steps["start_ns"].astype(np.int64), entered_ns, side="right") - 1
    is_inside = (records["end_ns"] > 0) & (records["flags"] & BROKEN == 0) & (owner >= 0)
    is_inside &= entered_ns <= steps["end_ns"].astype(np.int64)[owner]
    is_inside &= (records["step"] == steps["step"][owner]) & (records["kind"] != Kind.STEP)
    inside = np.flatnonzero(is_inside)
    start_ns, end_ns = device_spans(records)
    spent_ns = end_ns[inside].astype(np.int64) - start_ns[inside].astype(np.int64)
    return inside, spent_ns, owner[inside]


def _times_ns(
    kind: npt.NDArray[Any], is_wait: npt.NDArray[np.bool_], spent_ns: Ints, owner: Ints, count: int
) -> Ints:
    """Time by step and column; the waits of a pass are not its own time."""
    column = _COLUMN_OF[kind]
    column[(column == 0) & is_wait] = _NO_COLUMN
    width = _NO_COLUMN + 1
    totals = np.bincount(owner * width + column, spent_ns, count * width)
    return totals.astype(np.int64).reshape(count, width)


def _nested(records: npt.NDArray[Any], inside: Ints, spent_ns: Ints) -> Ints:
    """For each pass, how long it waited for parameters or gradients before it had ended.

    A pass waits for those of its later layers only when it gets there. Whether a wait lies in a
    pass is seen on the host: a device may do the pass while the host waits behind it.
    """
    kinds, start_ns = records["kind"][inside], records["start_ns"][inside].astype(np.int64)
    is_wait = records["flags"][inside] & WAITING > 0
    is_pass = (_COLUMN_OF[kinds] == 0) & ~is_wait
    passes = np.flatnonzero(is_pass)
    waits = np.flatnonzero(is_wait & np.isin(kinds, _OF_REPLICAS))
    found = np.zeros_like(spent_ns)
    place = np.searchsorted(passes, waits) - 1  # a record is behind those that it lies in
    waits, place = waits[place >= 0], passes[place[place >= 0]]
    is_within = start_ns[waits] < records["end_ns"][inside].astype(np.int64)[place]
    np.add.at(found, place[is_within], spent_ns[waits[is_within]])
    return found


def _groups(
    records: npt.NDArray[Any], inside: Ints, entered_ns: Ints, waited_ns: Ints, owner: Ints
) -> dict[int, list[list[int]]]:
    """By step, one row per line of the group table: line, number of collectives, and so on.

    A collective may have two records, of its issue and of the wait for it: the first one shows when
    it was entered, and one of them or both name its bytes.
    """
    line = records["line"][inside].astype(np.int64)
    of_group = np.flatnonzero(line)
    if not len(of_group):
        return {}
    inside = inside[of_group]
    key, name = owner[of_group] * _LINES + line[of_group], records["collective"][inside]
    order = np.lexsort((name, key))  # a stable sort: the first of a collective stays the first
    key, name = key[order], name[order]
    is_first = np.append(True, (np.diff(key) != 0) | (name[1:] != name[:-1]))
    begins = np.flatnonzero(is_first)  # of each collective
    nbytes = np.maximum.reduceat(records["nbytes"][inside][order].astype(np.int64), begins)
    entered_us, its_key = entered_ns[of_group][order][begins] // 1000, key[begins]
    rows = np.flatnonzero(np.append(True, np.diff(its_key) != 0))  # of each line
    waited_ns = np.add.reduceat(waited_ns[of_group][order], begins[rows])
    columns = (
        its_key[rows] % _LINES,
        np.diff(np.append(rows, len(begins))),
        waited_ns // 1000,
        np.add.reduceat(nbytes, rows),
        np.minimum.reduceat(entered_us, rows),
        np.maximum.reduceat(entered_us, rows),
    )
    found: dict[int, list[list[int]]] = {}
    for step, row in zip(
        (its_key[rows] // _LINES).tolist(), np.stack(columns, 1).tolist(), strict=True
    ):
        found.setdefault(step, []).append(row)
    return found
