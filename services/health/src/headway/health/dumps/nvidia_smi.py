"""Reads ``nvidia-smi --query-gpu=... --format=csv``, once or repeatedly (``-l``).

The header names the queries, with a unit in brackets: ``power.draw [W]``. Without a header
(``noheader``) the columns cannot be known, and nothing is read.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headway.health.dumps.times import read_stamp
from headway.health.rulebook import pci_address

_UNIT = re.compile(r"\s*\[[^\]]*\]\s*$")
_NUMBER = re.compile(r"^(-?\d{1,15}(?:\.\d{1,9})?)(?: ?(?:%|W|MHz|MiB|GiB|C|mW|KiB/s|MiB/s))?$")
_FLAGS: Final = {
    "active": 1.0,
    "not active": 0.0,
    "enabled": 1.0,
    "disabled": 0.0,
    "yes": 1.0,
    "no": 0.0,
}
_ABSENT: Final = ("n/a", "not supported", "not available", "not applicable")
_QUERIES: Final = ("utilization.", "power.", "clocks.", "memory.", "temperature.", "ecc.", "pcie.",
                   "clocks_throttle", "clocks_event", "pci.", "gpu_", "fan.")  # fmt: skip
_IDENTITY: Final = (
    "index",
    "uuid",
    "gpu_uuid",
    "gpu_bus_id",
    "pci.bus_id",
    "timestamp",
    "name",
    "serial",
)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one time."""

    host: str
    """By the index (``gpu-a01:0``), a column or the file's name; empty if unknown."""
    index: int
    """-1 if not printed."""
    uuid: str
    pci: str
    """In the form of the kernel; empty if not printed."""
    at_s: float | None
    values: Mapping[str, float]
    """By query, such as ``power.draw``: watts, megahertz, percent, mebibytes, degrees; flags and
    masks as numbers."""
    problems: Mapping[str, str]
    """By query, what was printed in place of a value and is not a plain absence, such as
    ``GPU requires reset``."""


def is_header(line: str) -> bool:
    """Whether a line names queries of nvidia-smi."""
    names = [_UNIT.sub("", cell).strip().lower() for cell in line[:4000].split(",")]
    known = [name for name in names if name.startswith(_QUERIES) or name in _IDENTITY]
    return len(names) >= 2 and len(known) >= max(2, len(names) // 2) and any(
        name.startswith(_QUERIES) for name in names
    )  # fmt: skip


def read_nvidia_smi(lines: Iterable[str], host: str = "") -> Iterator[GpuSample]:
    """The samples in the order of the file. ``host`` is the file's, where lines do not name it."""
    names: list[str] = []
    rows = csv.reader(_readable(lines), skipinitialspace=True)
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error:
            continue
        if is_header(",".join(cells)):
            names = [_UNIT.sub("", cell).strip().lower() for cell in cells]
        elif names and len(cells) == len(names):
            yield _sample(dict(zip(names, (cell.strip() for cell in cells), strict=True)), host)


def _readable(lines: Iterable[str]) -> Iterator[str]:
    """Without zeros and quotes: a quote that is never closed would swallow the rest of the file."""
    return (line[:8000].replace("\0", "").replace('"', "") for line in lines)


def _sample(row: dict[str, str], host: str) -> GpuSample:
    host = row.get("host", "") or row.get("hostname", "") or host
    own, _, number = row.get("index", "").rpartition(":")
    stamp = read_stamp(row.get("timestamp", ""))
    values: dict[str, float] = {}
    problems: dict[str, str] = {}
    for name, text in row.items():
        if name in _IDENTITY or name in ("host", "hostname"):
            continue
        value = number_of(text)
        if value is not None:
            values[name] = value
        elif text.startswith("[") and text.strip("[]").lower() not in _ABSENT:
            problems[name] = text.strip("[]")[:200]
    return GpuSample(
        own or host,
        int(number) if re.fullmatch(r"\d{1,4}", number) else -1,
        row.get("uuid", "") or row.get("gpu_uuid", ""),
        pci_address(row.get("pci.bus_id", "") or row.get("gpu_bus_id", "")),
        stamp.at_s if stamp else None,
        values,
        problems,
    )


def number_of(text: str) -> float | None:
    """A value as a number: of flags 1 and 0, of masks their bits; None of any other text."""
    if found := _NUMBER.match(text):
        return float(found[1])
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text):
        return float(int(text, 16))
    return _FLAGS.get(text.lower())
