"""Reads the newest summaries of steps that a monitor has saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from headway.common.errors import CorruptError
from headway.common.wire.messages.summaries import StepSummary
from headway.health.slowness.steps import (
    COLUMNS,
    MAX_STEPS,
    MOST_RANKS,
    WARM_STEPS,
    Ints,
    Rows,
)
from headway.health.store.summary_file import summary_files, unframed

_KEYS = ("node", "rank", "generation", "step")
_NEW = ("num_passes",)
"""Files of an older version have no such column: 0, unknown."""


def read_rows(
    folder: Path, num_ranks: int = MOST_RANKS
) -> tuple[Rows, dict[str, str], dict[str, str]]:
    """The newest summaries of a folder; which files, or rows of them, were read or not and why.

    Args:
        num_ranks: rows of ranks beyond it are refused.
    """
    parts: list[Rows] = []
    read: dict[str, str] = {}
    unread: dict[str, str] = {}
    steps: set[int] = set()
    for path in reversed(summary_files(folder)):
        try:
            part = _of_parquet(path) if path.suffix == ".parquet" else _of_messages(path)
        except (CorruptError, OSError) as error:
            unread[path.name] = str(error)
            continue
        read[path.name] = "summaries of steps"
        if len(refused := part.rank[part.rank >= num_ranks]):
            unread[path.name] = (
                f"{len(refused)} of its {len(part.rank)} rows: rank {refused.max()} is beyond the "
                f"{num_ranks} that the run may have"
            )
        parts.insert(0, part)
        steps.update(np.unique(part.step[part.rank < num_ranks]).tolist())
        if len(steps) >= MAX_STEPS + WARM_STEPS:
            break
    return _joined(parts), read, unread


def _of_parquet(path: Path) -> Rows:
    """One file.

    Raises:
        CorruptError: it cannot be read, or polars is not installed.
    """
    try:
        import polars as pl
    except ImportError as error:
        raise CorruptError(
            f"{path.name} cannot be read without polars", remedy="install headway-health[store]"
        ) from error
    try:
        there = pl.scan_parquet(path, glob=False).collect_schema().names()
        wanted = [
            *_KEYS,
            *(name for name in COLUMNS if name not in _NEW or name in there),
            "groups",
        ]
        frame = pl.read_parquet(path, columns=wanted, glob=False).with_row_index("owner")
        groups = (
            frame.select("owner", "groups").explode("groups").drop_nulls("groups")
            .unnest("groups").select("owner", "line", "wait_us")
        )  # fmt: skip
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        first_line = str(error).partition("\n")[0]
        raise CorruptError(
            f"{path.name} has no summaries of steps: {first_line}", remedy="remove the file"
        ) from error

    def column(rows: pl.DataFrame, name: str) -> Ints:
        if name not in rows.columns:
            return np.zeros(len(rows), np.int64)
        return rows[name].fill_null(-1).to_numpy().astype(np.int64)

    return Rows(
        column(frame, "node"), column(frame, "rank"),
        column(frame, "generation"), column(frame, "step"),
        {name: column(frame, name) for name in COLUMNS},
        column(groups, "owner"), column(groups, "line"),
        column(groups, "wait_us"),
    )  # fmt: skip


def _of_messages(path: Path) -> Rows:
    return rows_of(unframed(path.read_bytes()))


def rows_of(messages: Iterator[StepSummary]) -> Rows:
    """What the messages of agents say.

    Raises:
        CorruptError: they cannot be decoded.
    """
    steps = [(message.node, one) for message in messages for one in message.steps]
    groups = [(owner, one) for owner, (_, step) in enumerate(steps) for one in step.groups]

    def ints(values: list[int]) -> Ints:
        return np.array(values, np.int64)

    return Rows(
        ints([node for node, _ in steps]),
        ints([one.rank for _, one in steps]),
        ints([one.generation for _, one in steps]),
        ints([one.step for _, one in steps]),
        {name: ints([getattr(one, name) for _, one in steps]) for name in COLUMNS},
        ints([owner for owner, _ in groups]),
        ints([one.line for _, one in groups]),
        ints([one.wait_us for _, one in groups]),
    )


def _joined(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part.rank) for part in parts)])

    def joined(values: list[Ints]) -> Ints:
        return np.concatenate(values) if values else np.zeros(0, np.int64)

    return Rows(
        joined([part.node for part in parts]),
        joined([part.rank for part in parts]),
        joined([part.generation for part in parts]),
        joined([part.step for part in parts]),
        {name: joined([part.times[name] for part in parts]) for name in COLUMNS},
        joined([part.owner + offset for part, offset in zip(parts, before, strict=False)]),
        joined([part.line for part in parts]),
        joined([part.wait_us for part in parts]),
    )
