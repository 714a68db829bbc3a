"""The files in which a run keeps its flight records: their names, and what each says about itself.

``events/n<node>-<first start, ns>.parquet`` has the records that all ranks of a node have finished
in about a minute: one row each with the columns of ``COLUMNS``, sorted by rank and sequence number,
and ``WindowFacts`` as the metadata ``FACTS_KEY``. A node without polars writes ``.npy`` files
instead, arrays of dtype ``WINDOW`` without facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError
from headway.common.node.flight_record import RECORD

PARQUET, RAW = ".parquet", ".npy"
FACTS_KEY = "headway.window"
WINDOW = np.dtype([*RECORD.descr, ("rank", "<i4")])
_MIXED = ("sequence", "end_ns", "device")
"""Fields whose bytes change from row to row although little in them is new."""
COLUMNS: dict[str, np.dtype[Any]] = {
    **{name: WINDOW[name] for name in WINDOW.names or () if name not in _MIXED},
    "duration_ns": np.dtype("i8"),  # -1 of an open record
    "sequence_high": np.dtype("u8"),  # sequence // 256
    "sequence_low": np.dtype("u1"),
    "device_late_us": np.dtype("u4"),  # the two halves of device, see flight_record.device_times
    "device_span_us": np.dtype("u4"),
}
"""The columns of a Parquet window. Those that are not of ``WINDOW`` stand for fields that would not
compress: on a GPU a record takes 10 bytes instead of 14."""
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
    """Latest time at which a record begins or ends in it."""
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


def to_columns(rows: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Records of dtype ``WINDOW`` as ``COLUMNS``."""
    is_open = rows["end_ns"] == 0
    spent_ns = rows["end_ns"].astype(np.int64) - rows["start_ns"].astype(np.int64)
    made = {
        "duration_ns": np.where(is_open, -1, np.maximum(spent_ns, 0)),
        "sequence_high": rows["sequence"] >> np.uint64(8),
        "sequence_low": rows["sequence"] & np.uint64(0xFF),
        "device_late_us": rows["device"] >> np.uint64(32),
        "device_span_us": rows["device"] & np.uint64(0xFFFFFFFF),
    }
    return {
        name: np.ascontiguousarray(made[name] if name in made else rows[name]).astype(kind)
        for name, kind in COLUMNS.items()
    }


def from_columns(columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Records of dtype ``WINDOW`` from ``COLUMNS``."""
    rows = np.empty(len(columns["rank"]), WINDOW)
    for name in WINDOW.names or ():
        if name not in _MIXED:
            rows[name] = columns[name]
    spent_ns = columns["duration_ns"].astype(np.int64)
    end_ns = rows["start_ns"].astype(np.int64) + spent_ns
    rows["end_ns"] = np.where(spent_ns < 0, 0, end_ns)
    rows["sequence"] = columns["sequence_high"] << np.uint64(8) | columns["sequence_low"]
    late_us = columns["device_late_us"].astype(np.uint64)
    rows["device"] = late_us << np.uint64(32) | columns["device_span_us"]
    return rows


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


def read_raw(path: Path) -> npt.NDArray[Any]:
    """The rows of a ``.npy`` window.

    Raises:
        CorruptError: it is none, or of another format. OSError: it cannot be read.
    """
    try:
        rows = np.load(path, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:
        # numpy raises various errors for a file that is truncated or full of zeros
        raise CorruptError(
            f"{path} is not a window of records", remedy="remove the file"
        ) from error
    if rows.dtype != WINDOW or rows.ndim != 1:
        raise CorruptError(f"{path} holds records of another format", remedy="remove the file")
    found: npt.NDArray[Any] = rows
    return found
