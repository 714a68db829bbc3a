"""Reads the tables that the programs of nccl-tests print: bandwidth by message size.

Format of nccl-tests 2.10 to 2.18 (src/common.cu): lines of a setting begin with ``#``, and each row
has size, count, type, operation and root, and then twice (out of place and in place) the time in
microseconds, the algorithm's and the bus bandwidth in gigabytes per second, and wrong elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headway.health.dumps.log_lines import split_line
from headway.health.rulebook import pci_address

MAX_ROWS: Final = 100_000
_DEVICE = re.compile(
    r"#?\s*Rank\s+(?P<rank>\d{1,7}) (?:Group\s+\d+ )?Pid\s+(?P<pid>\d{1,10}) on\s+"
    r"(?P<host>\S{1,253}) device\s+(?P<device>\d{1,3}) "
    r"\[(?P<bus>[0-9a-fA-Fx:.]{2,20})\]\s*(?P<gpu>.{0,100})"
)
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\d{1,9}(?:\.\d+)?)")
_WRONG = re.compile(r"#\s*Out of bounds values\s*:\s*(\d{1,12})\s*(\w*)")
_TEST = re.compile(r"#\s*Collective test (?:starting|concluded)\s*:\s*(\w{1,60})")
_NUMBER: Final = r"(?:\d{1,12}(?:\.\d{1,9})?(?:e[+-]?\d{1,3})?|N/A|nan|inf)"
_ROW = re.compile(
    r"\s*(?P<size>\d{1,18})\s+(?P<count>\d{1,18})\s+(?P<type>[a-z]\w{1,20})\s+(?:(?P<op>[a-z]\w{1,20})\s+)?"
    rf"(?:(?P<root>-?\d{{1,7}})\s+)?(?P<out>(?:{_NUMBER}\s+){{3}}{_NUMBER})\s+(?P<in>(?:{_NUMBER}\s+){{3}}{_NUMBER})\s*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class BandwidthRank:
    """A rank of the test."""

    rank: int
    host: str
    pid: int
    device: int
    pci: str
    """Empty in versions that print only the bus number."""
    gpu: str


@dataclass(frozen=True, slots=True)
class BandwidthRow:
    """One message size."""

    size_bytes: int
    op: str
    """Operation of the reduction, ``none`` or empty without one."""
    root: int
    """-1 for none."""
    time_us: float
    """Out of place, as all that follows; -1 if not measured."""
    algorithm_gbps: float
    """Gigabytes per second."""
    bus_gbps: float
    """Gigabytes per second, independent of the number of ranks."""
    in_place_bus_gbps: float
    num_wrong: int
    """Elements with a wrong result, of both ways; -1 if they were not checked."""


@dataclass(frozen=True, slots=True)
class NcclTest:
    """What one run of a test printed."""

    name: str
    """Such as ``all_reduce_perf``; empty in versions that do not print it."""
    ranks: tuple[BandwidthRank, ...]
    rows: tuple[BandwidthRow, ...]
    average_bus_gbps: float
    """-1 if the test did not come to its end."""
    num_out_of_bounds: int
    """-1 if not printed."""

    @property
    def peak_bus_gbps(self) -> float:
        """The highest of all sizes, in gigabytes per second; 0 without rows."""
        return max((max(row.bus_gbps, row.in_place_bus_gbps) for row in self.rows), default=0.0)


def read_nccl_test(lines: Iterable[str]) -> NcclTest | None:
    """The table in a text, None without one. Prefixes of mpirun and srun do not matter."""
    ranks: dict[int, BandwidthRank] = {}
    rows: list[BandwidthRow] = []
    name, average, wrong = "", -1.0, -1
    for line in lines:
        text = split_line(line[:2000]).text
        if (found := _ROW.match(text)) and len(rows) < MAX_ROWS:
            rows.append(_row(found))
        elif found := _DEVICE.search(text):
            ranks[int(found["rank"])] = _rank(found)
        elif found := _AVERAGE.search(text):
            average = float(found[1])
        elif found := _WRONG.search(text):
            wrong = int(found[1])
        elif found := _TEST.search(text):
            name = found[1]
    if not rows and not ranks:
        return None
    ordered = tuple(ranks[rank] for rank in sorted(ranks))
    return NcclTest(name, ordered, tuple(rows), average, wrong)


def _row(found: re.Match[str]) -> BandwidthRow:
    time_us, algorithm, bus, wrong = map(_value, found["out"].split())
    _, _, in_place, also_wrong = map(_value, found["in"].split())
    checked = [int(count) for count in (wrong, also_wrong) if count >= 0]
    return BandwidthRow(
        int(found["size"]), found["op"] or "", int(found["root"] or -1), time_us, algorithm, bus,
        in_place, sum(checked) if checked else -1,
    )  # fmt: skip


def _value(text: str) -> float:
    value = float(text) if text[:1].isdigit() else -1.0
    return value if value < 1e15 else -1.0


def _rank(found: re.Match[str]) -> BandwidthRank:
    return BandwidthRank(
        int(found["rank"]), found["host"], int(found["pid"]), int(found["device"]),
        pci_address(found["bus"]) if ":" in found["bus"] else "", found["gpu"].strip(),
    )  # fmt: skip
