"""The files in which a run keeps its flight records: their names, and what each says about itself.

``events/n<node>-<first start, ns>.parquet`` has the records that all ranks of a node have finished
in about a minute: the columns of ``RECORD`` and ``rank``, sorted by rank and sequence number, with
``WindowFacts`` as the metadata ``FACTS_KEY``. A node without polars writes ``.npy`` files instead,
arrays of dtype ``WINDOW`` without facts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from headway.common.errors import CorruptError
from headway.common.node.flight_record import RECORD

PARQUET, RAW = ".parquet", ".npy"
FACTS_KEY = "headway.window"
WINDOW = np.dtype([*RECORD.descr, ("rank", "<i4")])
_NAME = re.compile(r"n(\d{1,9})-(\d{20})(\.parquet|\.npy)")
_EARLIER = re.compile(r"n(\d{1,9})-rank\d+-\d+\.npy")
_SMALL_ENOUGH = 1 << 63


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How far the records of one rank have been saved, this window included."""

    next: int
    """Sequence number of the first record that no window has yet."""
    last_start_ns: int
    """Start of the last one saved: another record with its number is of another ring."""
    lost: int = 0
    """Records that were overwritten between the window before and this one."""


class WindowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a window says about itself, readable without its records."""

    node: int
    boot_id: str
    """The boot of the machine whose monotonic clock the times are of."""
    start_ns: int
    end_ns: int
    """Of the last record that begins or ends in it."""
    ranks: dict[int, RankFacts]
    """Also of ranks that have no record in this window."""


@dataclass(frozen=True, slots=True, order=True)
class EventFile:
    """One window, by its name."""

    node: int
    start_ns: int
    """Start of its first record, on the node's clock."""
    path: Path

    @property
    def is_parquet(self) -> bool:
        return self.path.suffix == PARQUET


def event_files(folder: Path, node: int | None = None) -> list[EventFile]:
    """The windows of all nodes, or of one, by node and start."""
    names = ((_NAME.fullmatch(path.name), path) for path in folder.glob("n*"))
    found = [EventFile(int(name[1]), int(name[2]), path) for name, path in names if name]
    return sorted(one for one in found if node in (None, one.node))


def earlier_files(folder: Path, node: int | None = None) -> list[Path]:
    """Windows in the form of an earlier version, with one rank in each."""
    names = ((_EARLIER.fullmatch(path.name), path) for path in folder.glob("n*-rank*.npy"))
    return sorted(path for name, path in names if name and node in (None, int(name[1])))


def event_file(folder: Path, node: int, start_ns: int, suffix: str) -> Path:
    """Where a window of this start is to be written: a name that no other window has."""
    while True:
        stem = folder / f"n{node}-{start_ns:020d}"
        if not any(stem.with_suffix(known).exists() for known in (PARQUET, RAW)):
            return stem.with_suffix(suffix)
        start_ns += 1  # of another boot, whose clock began at 0 too


def read_facts(path: Path, text: str | None) -> WindowFacts:
    """The facts in a window's metadata.

    Raises:
        CorruptError: there are none, or they are not those of a window.
    """
    try:
        facts = msgspec.json.decode(text or "", type=WindowFacts)
    except msgspec.MsgspecError as error:
        raise CorruptError(
            f"{path} does not say which records it has: {error}", remedy="remove the file"
        ) from error
    numbers = [facts.start_ns, facts.end_ns, *(one.next for one in facts.ranks.values())]
    if not all(0 <= number < _SMALL_ENOUGH for number in numbers):
        raise CorruptError(f"{path} names impossible times: {numbers}", remedy="remove the file")
    return facts
