"""The steps of a run as ``replay`` takes them, from its flight records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import Any

import polars as pl
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.actions import COLLECTIVES
from headway.console.analysis.replay import Operation, Step

_SENDS = {Kind.SEND_FORWARD.name: 1, Kind.SEND_BACKWARD.name: -1}
"""Sends, and how far the receiver's stage is from the sender's."""
_RECEIVES = {Kind.RECV_FORWARD.name: "forward", Kind.RECV_BACKWARD.name: "backward"}
_NORM = Kind.NORM.name
_PARTS_OF_NORM = (Kind.SUMS.name, Kind.AGREEMENT.name)
Row = dict[str, Any]


def own_steps(actions: pl.DataFrame, grid: Grid) -> dict[tuple[int, int], Step]:
    """(Generation, step) -> what its ranks did.

    ``actions`` as ``step_actions`` returns them. A pass of several tensor parallel ranks contains
    their collectives, so a slow one makes all of them look alike.
    """
    rows: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in actions.sort("rank", "start_ns", "sequence").iter_rows(named=True):
        if row["action"] not in _PARTS_OF_NORM:
            rows[row["generation"], row["step"]].append(row)
    return {key: _step(found, grid) for key, found in rows.items()}


def _step(rows: list[Row], grid: Grid) -> Step:
    begun: dict[Hashable, int] = defaultdict(int)
    ended: dict[Hashable, int] = {}
    for row in rows:
        for meeting, begins, waits in _parts(row, grid):
            if begins:
                begun[meeting] = max(begun[meeting], row["start_ns"])
            if waits:
                ended[meeting] = min(ended.get(meeting, row["end_ns"]), row["end_ns"])
    order: dict[int, list[list[Operation]]] = defaultdict(list)
    for row in rows:
        for meeting, begins, waits in _parts(row, grid):
            spent_ns = row["own_ns"]
            if meeting is not None:
                if meeting not in begun or meeting not in ended:
                    continue  # its other end was not recorded
                spent_ns = max(0, ended[meeting] - begun[meeting])
            order[row["rank"]].append(
                [
                    Operation(
                        row["action"].lower(),
                        row["rank"],
                        row["pp_rank"],
                        spent_ns / 1e9,
                        meeting,
                        begins,
                        waits,
                    )
                ]
            )
    return order


def _parts(row: Row, grid: Grid) -> Iterator[tuple[Hashable, bool, bool]]:
    """The meeting of a record, and whether its rank begins to take part and waits there."""
    action, number = row["action"], (row["chunk"], row["micro_batch"])
    if not row["has_peers"]:
        yield None, True, True
    elif action in _SENDS:
        if not row["waiting"]:
            yield (_RECEIVES[action.replace("SEND", "RECV")], *_receiver(row, grid)), True, False
    elif action in _RECEIVES:
        if row["waiting"]:
            yield (_RECEIVES[action], row["rank"], *number), False, True
    elif action in COLLECTIVES:
        of = (action, row["pp_rank"], row["tp_rank"], *number)  # which are chunk and bucket
        yield of, not row["waiting"], row["waiting"]
    else:
        yield (action,), True, True


def _receiver(row: Row, grid: Grid) -> tuple[int, int, int]:
    """Rank, chunk and micro-batch by which the other end records a message."""
    stage = grid.stage_map.stage(row["pp_rank"], row["chunk"])
    peer, chunk = grid.stage_map.place(stage + _SENDS[row["action"]])
    rank = (peer * grid.dp + row["dp_rank"]) * grid.tp + row["tp_rank"]
    return rank, chunk, row["micro_batch"]
