"""Windows of flight records on disk: how one is written, and how far the newest ones go.

Each window carries how far every rank of the node has been saved, so that records and that are one
file, replaced in one step: a saver that is killed has either saved both or nothing.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError
from headway.common.log import get_logger
from headway.common.node.event_files import (
    FACTS_KEY,
    PARQUET,
    RAW,
    WINDOW,
    EventFile,
    RankFacts,
    WindowFacts,
    event_file,
    event_files,
    read_facts,
    read_raw,
    to_columns,
)
from headway.common.node.files import replace_file
from headway.common.node.flight_record import RECORD
from headway.common.node.machine import boot_id
from headway.health.store.rings import NewRecords

_log = get_logger("windows")


def write_window(
    events: Path, node: int, parts: Sequence[NewRecords], saved: dict[int, RankFacts]
) -> Path:
    """Write the records of all ranks as one file, Parquet where polars is installed.

    Args:
        saved: how far ranks without new records were saved before.

    Raises:
        OSError: the file cannot be written; nothing has changed then.
    """
    rows = _joined(parts)
    idle = {rank: msgspec.structs.replace(facts, lost=0) for rank, facts in saved.items()}
    facts = WindowFacts(
        node=node,
        boot_id=boot_id(),
        start_ns=int(rows["start_ns"].min()),
        end_ns=int(max(rows["start_ns"].max(), rows["end_ns"].max())),
        ranks={**idle, **{part.rank: part.facts for part in parts}},
    )
    suffix, content = _encoded(rows, facts)
    target = event_file(events, node, facts.start_ns, suffix)
    replace_file(target, content)
    return target


def _joined(parts: Sequence[NewRecords]) -> npt.NDArray[Any]:
    rows = np.empty(sum(len(part.records) for part in parts), WINDOW)
    at = 0
    for part in sorted(parts, key=lambda one: one.rank):
        end = at + len(part.records)
        for name in RECORD.names or ():
            rows[name][at:end] = part.records[name]
        rows["rank"][at:end] = part.rank
        at = end
    return rows


def _encoded(rows: npt.NDArray[Any], facts: WindowFacts) -> tuple[str, bytes]:
    content = io.BytesIO()
    try:
        import polars as pl
    except ImportError:
        np.save(content, rows, allow_pickle=False)
        return RAW, content.getvalue()
    pl.DataFrame(to_columns(rows)).write_parquet(
        content,
        compression="zstd",
        metadata={FACTS_KEY: msgspec.json.encode(facts).decode()},
    )
    return PARQUET, content.getvalue()


def saved_until(events: Path, node: int, ranks: set[int]) -> dict[int, RankFacts]:
    """How far each rank of a node was saved, by its newest windows that are readable.

    A window that was damaged by a power loss is passed over with a warning: what it had is written
    again if the rings still have it.

    Args:
        ranks: which ones are asked for; the search ends once all of them are known.
    """
    found: dict[int, RankFacts] = {}
    # By age, not by name, since names start at 0 again after a reboot.
    aged = sorted(
        event_files(events, node), key=lambda one: (one.path.stat().st_mtime_ns, one), reverse=True
    )
    for window in aged:
        if ranks <= found.keys():
            break
        try:
            of_ranks = _facts(window)
        except (OSError, CorruptError) as error:
            reason = str(error)
            _log.warning(
                "a window of flight records is damaged", file=str(window.path), reason=reason
            )
            continue
        found = {**of_ranks, **found}
    return found


def _facts(window: EventFile) -> dict[int, RankFacts]:
    """Raises OSError, CorruptError."""
    if window.is_parquet:
        return _parquet_facts(window.path)
    rows = read_raw(window.path)
    if not len(rows) or not rows["start_ns"].all():
        raise CorruptError(f"{window.path} has rows of zeros", remedy="remove the file")
    last = {int(rank): row for rank, row in zip(rows["rank"], rows, strict=True)}
    return {
        rank: RankFacts(next=int(row["sequence"]) + 1, last_start_ns=int(row["start_ns"]))
        for rank, row in last.items()
    }


def _parquet_facts(path: Path) -> dict[int, RankFacts]:
    try:
        import polars as pl
    except ImportError as error:
        raise CorruptError(
            f"{path} cannot be read without polars", remedy="install headway-health[store]"
        ) from error
    try:
        metadata = pl.read_parquet_metadata(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise CorruptError(
            f"{path} is not a window of records: {error}", remedy="remove the file"
        ) from error
    return read_facts(path, metadata.get(FACTS_KEY)).ranks
